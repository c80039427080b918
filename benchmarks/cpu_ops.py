"""Times ops and small models of the torch of this Python on request; benchmarks/cpu_builds.py starts it.

Standard library and torch only. It prints the names of the cases, then answers each line of its input, `CASE THREADS`,
with the seconds of one call, or with why this build cannot run it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

BATCHES = 3  # the fastest counts: whatever else runs only makes it slower
BATCH_SECONDS = 0.007  # as many calls as take this long
SETTLE_SECONDS = 0.01  # OpenMP's threads of the other build go to sleep
FLOAT, BF16, HALF = torch.float32, torch.bfloat16, torch.float16
NAMES = {FLOAT: "fp32", BF16: "bf16", HALF: "fp16", torch.int8: "int8", torch.int64: "int64", torch.float64: "fp64"}

Call = Callable[[], object]
Make = Callable[[Any], Call]


class Cases:
    """The cases by their name, such as `softmax/fp32`; made when first asked for."""

    def __init__(self) -> None:
        self.makers: dict[str, tuple[Make, Any]] = {}

    def add(self, name: str, make: Make, *types: Any) -> None:
        for kind in types or (FLOAT,):
            self.makers[f"{name}/{NAMES[kind]}"] = (make, kind)

    def unary(self, name: str, function: Callable[[Any], object], shape: tuple[int, ...], *types: Any) -> None:
        def make(kind: Any) -> Call:
            value = torch.rand(shape).add(0.1).to(kind)
            return lambda: function(value)

        self.add(name, make, *types)


def elementwise(cases: Cases) -> None:
    million = (1024, 1024)
    both = (FLOAT, BF16)
    cases.unary("add of 8 numbers", lambda x: x + x, (8,))
    cases.unary("add", lambda x: x + x, million, *both)
    cases.unary("multiply, then add a column", lambda x: torch.addcmul(x, x, x[:, :1]), million)
    for name in ("exp", "log", "tanh", "sigmoid", "sin", "erf", "sqrt"):
        cases.unary(name, getattr(torch, name), million, *both)
    cases.unary("pow", lambda x: x**1.5, million)
    cases.unary("gelu", functional.gelu, million, *both)
    cases.unary("gelu (tanh)", lambda x: functional.gelu(x, approximate="tanh"), million)
    cases.unary("silu", functional.silu, million, *both)
    cases.unary("compare and select", lambda x: torch.where(x > 0.5, x, 0.0), million)
    cases.unary("convert to bf16", lambda x: x.to(BF16), million)


def reductions(cases: Cases) -> None:
    rows = (512, 1024)
    both = (FLOAT, BF16)
    cases.unary("softmax", lambda x: torch.softmax(x, -1), rows, *both)
    cases.unary("log_softmax", lambda x: torch.log_softmax(x, -1), rows)
    cases.unary("softmax, first dimension", lambda x: torch.softmax(x, 0), rows)
    cases.unary("layer_norm", lambda x: functional.layer_norm(x, (1024,)), rows, *both)
    cases.unary("batch_norm", lambda x: functional.batch_norm(x, None, None, training=True), (16, 64, 28, 28))
    cases.unary("sum", torch.sum, (1024, 1024), *both)
    cases.unary("sum of columns", lambda x: x.sum(0), (1024, 1024))
    cases.unary("max with index", lambda x: x.max(-1), rows)
    cases.unary("cumsum", lambda x: x.cumsum(-1), rows)
    cases.unary("standard deviation", lambda x: x.std(-1), rows)
    cases.unary("norm", torch.linalg.vector_norm, (1024, 1024))
    cases.unary("max_pool2d", lambda x: functional.max_pool2d(x, 2), (16, 64, 28, 28))


def movement(cases: Cases) -> None:
    def integers(count: int, below: int) -> Any:
        return torch.randint(below, (count,))

    cases.unary("sort", torch.sort, (100_000,))
    cases.add("sort", lambda _: _call(torch.sort, integers(100_000, 1 << 30)), torch.int64)
    cases.unary("topk", lambda x: x.topk(10), (64, 10_000))
    table, where = torch.rand(20_000, 128), integers(4096, 20_000)
    cases.add("embedding", lambda kind: _call(functional.embedding, where, table.to(kind)), FLOAT, BF16)
    bags = where.view(256, 16)
    cases.add("embedding_bag", lambda _: _call(functional.embedding_bag, bags, table))
    cases.add("index_select", lambda _: _call(torch.index_select, table, 0, where))
    gathered = torch.randint(1024, (512, 1024))
    cases.unary("gather", lambda x: x.gather(1, gathered), (512, 1024))
    cases.unary("scatter_add", lambda x: torch.zeros_like(x).scatter_add_(1, gathered, x), (512, 1024))
    cases.unary("cat", lambda x: torch.cat((x, x), 1), (1024, 512))
    cases.unary("transposed copy", lambda x: x.t().contiguous(), (1024, 1024), FLOAT, BF16)
    cases.unary("permuted copy", lambda x: x.permute(0, 2, 3, 1).contiguous(), (8, 64, 56, 56))
    cases.unary("upsample", lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear"), (4, 16, 56, 56))
    cases.unary("normal random numbers", lambda x: x.normal_(), (1024, 256))
    cases.unary("dropout", lambda x: functional.dropout(x, 0.1), (1024, 256))


def linear_algebra(cases: Cases) -> None:
    both = (FLOAT, BF16)
    for size in (64, 256, 768):

        def square(kind: Any, size: int = size) -> Call:
            return _call(torch.matmul, torch.rand(size, size, dtype=kind), torch.rand(size, size, dtype=kind))

        cases.add(f"matmul {size}", square, *both)
    cases.add("matrix times vector", lambda _: _call(torch.mv, torch.rand(2048, 2048), torch.rand(2048)))
    cases.add("bmm", lambda kind: _call(torch.bmm, *torch.rand(2, 32, 64, 64).to(kind)), *both)
    cases.add(
        "int8 matmul", lambda _: _call(torch._int_mm, *torch.randint(-99, 99, (2, 256, 256)).to(torch.int8)), torch.int8
    )
    cases.add("linear", lambda kind: _layer(nn.Linear(768, 768), torch.rand(64, 768), kind), FLOAT, BF16, HALF)
    cases.add(
        "quantised linear", lambda _: _quantised(nn.Sequential(nn.Linear(768, 768)), torch.rand(64, 768)), torch.int8
    )
    cases.unary("solve", lambda x: torch.linalg.solve(x + torch.eye(256) * 256, x), (256, 256))
    cases.unary("cholesky", lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(256)), (256, 256))
    cases.unary("svd", torch.linalg.svd, (96, 96))
    cases.unary("eigh", lambda x: torch.linalg.eigh(x + x.T), (128, 128))
    cases.unary("fft", torch.fft.fft, (64, 1024))
    cases.unary("rfft2", torch.fft.rfft2, (8, 128, 128))


def networks(cases: Cases) -> None:
    both = (FLOAT, BF16)
    cases.add(
        "conv2d 3x3", lambda kind: _layer(nn.Conv2d(64, 64, 3, padding=1), torch.rand(4, 64, 28, 28), kind), *both
    )
    cases.add("conv2d 1x1", lambda kind: _layer(nn.Conv2d(256, 64, 1), torch.rand(4, 256, 28, 28), kind), *both)
    depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64)
    cases.add("conv2d depthwise", lambda kind: _layer(depthwise, torch.rand(4, 64, 28, 28), kind))
    cases.add("conv1d", lambda kind: _layer(nn.Conv1d(64, 64, 5), torch.rand(4, 64, 512), kind))
    cases.add(
        "conv_transpose2d", lambda kind: _layer(nn.ConvTranspose2d(32, 32, 2, 2), torch.rand(4, 32, 28, 28), kind)
    )
    cases.add("attention", lambda kind: _call(functional.scaled_dot_product_attention, *_heads(kind)), *both)
    masked = torch.ones(128, 128).tril().bool()
    cases.add(
        "attention with a mask",
        lambda kind: _call(functional.scaled_dot_product_attention, *_heads(kind), attn_mask=masked),
    )
    cases.add("lstm", lambda kind: _layer(nn.LSTM(128, 128, batch_first=True), torch.rand(8, 32, 128), kind))
    cases.add("cross_entropy", lambda _: _call(functional.cross_entropy, torch.rand(256, 1000), torch.arange(256)))


def models(cases: Cases) -> None:
    shapes: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
        "MLP": (_mlp, (64, 256)),
        "CNN": (_cnn, (8, 3, 32, 32)),
        "transformer block": (_block, (4, 64, 256)),
    }
    for name, (build, shape) in shapes.items():

        def infer(kind: Any, build: Callable[[], Any] = build, shape: tuple[int, ...] = shape) -> Call:
            return _layer(build().eval(), torch.rand(shape), kind)

        def train(kind: Any, build: Callable[[], Any] = build, shape: tuple[int, ...] = shape) -> Call:
            return _training(build(), torch.rand(shape), kind)

        cases.add(f"{name}, inference", infer, FLOAT, BF16)
        cases.add(f"{name}, training step", train, FLOAT, BF16)


def _call(function: Callable[..., object], *values: Any, **named: Any) -> Call:
    return lambda: function(*values, **named)


def _heads(kind: Any) -> Any:
    return torch.rand(3, 2, 8, 128, 64).to(kind)


def _layer(module: Any, value: Any, kind: Any) -> Call:
    module, value = module.to(kind), value.to(kind)

    def call() -> object:
        with torch.no_grad():
            return module(value)

    return call


def _quantised(module: Any, value: Any) -> Call:
    return _layer(torch.ao.quantization.quantize_dynamic(module, {nn.Linear}), value, FLOAT)


def _mlp() -> Any:
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def _cnn() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def _block() -> Any:
    return nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, activation="gelu", batch_first=True)


def _training(module: Any, value: Any, kind: Any) -> Call:
    """One step of AdamW; bf16 by autocast, as models are trained."""
    optimiser = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def call() -> None:
        optimiser.zero_grad()
        with torch.autocast("cpu", BF16, enabled=kind is BF16):
            loss = module(value).float().square().mean()
        loss.backward()
        optimiser.step()

    return call


def all_cases() -> Cases:
    cases = Cases()
    for group in (elementwise, reductions, movement, linear_algebra, networks, models):
        group(cases)
    return cases


def works(make: Make, kind: Any) -> tuple[Call | None, str]:
    """The call after it ran once; or why this build cannot run it."""
    torch.manual_seed(0)
    try:
        call = make(kind)
        call()
    except Exception as error:  # whatever a build lacks
        return None, (str(error).strip() or repr(error)).splitlines()[0][:200]
    return call, ""


def time_call(call: Call, count: int) -> float:
    """Seconds per call, in the fastest of a few batches."""
    found = []
    for _ in range(BATCHES):
        began = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - began) / count)
    return min(found)


def main() -> None:
    cases = all_cases()
    ready: dict[str, Call] = {}
    counts: dict[tuple[str, int], int] = {}
    everything = torch.get_num_threads()
    about = {"torch": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability(), "threads": everything}
    print(json.dumps({**about, "cases": list(cases.makers)}), flush=True)
    for line in sys.stdin:
        name, _, threads = line.strip().rpartition(" ")
        if name not in ready:
            call, why = works(*cases.makers[name])
            if call is None:
                print(json.dumps({"error": why}), flush=True)
                continue
            ready[name] = call
        torch.set_num_threads(int(threads))
        call, key = ready[name], (name, int(threads))
        time.sleep(SETTLE_SECONDS)
        if key not in counts:
            counts[key] = max(1, round(BATCH_SECONDS / time_call(call, 1)))
        call()
        print(json.dumps({"seconds": time_call(call, counts[key])}), flush=True)


if __name__ == "__main__":
    main()
