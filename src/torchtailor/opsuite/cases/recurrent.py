"""cuDNN's recurrent networks, and CTC loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from ..case import REGISTRY
from ..sites import Site
from ..tolerance import Tolerance

KINDS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def _forward(site: Site, kind: Any, **options: Any) -> Any:
    network = site.module(lambda: kind(16, 24, batch_first=True, **options)).eval()
    output, state = network(site.normal(5, 12, 16))
    return output, state


def _backward(site: Site, kind: Any) -> Any:
    network = site.module(lambda: kind(12, 16, num_layers=2)).train()
    data = site.normal(7, 4, 12, grad=True)
    return site.with_gradients(network(data)[0], data, *network.parameters())


def _tolerance(dtype: Any) -> Tolerance:
    return Tolerance.TF32_LOOSE if dtype is torch.float32 else Tolerance.LOOSE


for _name, _kind in KINDS.items():
    for _dtype in (torch.float32, torch.float16):
        REGISTRY.add("cudnn", _name, partial(_forward, kind=_kind), _dtype, _tolerance(_dtype))
        REGISTRY.add("cudnn", f"{_name}-backward", partial(_backward, kind=_kind), _dtype, _tolerance(_dtype))
    REGISTRY.add(
        "cudnn",
        f"{_name}-bidirectional",
        partial(_forward, kind=_kind, bidirectional=True, num_layers=2),
        torch.float32,
        _tolerance(torch.float32),
    )
REGISTRY.add(
    "cudnn", "lstm-projected", partial(_forward, kind=nn.LSTM, proj_size=8), torch.float32, Tolerance.TF32_LOOSE
)
REGISTRY.add("cudnn", "lstm", partial(_forward, kind=nn.LSTM), torch.float64, Tolerance.LOOSE)


@REGISTRY.case("cudnn", "packed-sequence", tolerance=Tolerance.TF32_LOOSE)
def _packed(site: Site) -> Any:
    network = site.module(lambda: nn.GRU(8, 12)).eval()
    packed = nn.utils.rnn.pack_padded_sequence(site.normal(9, 3, 8), [9, 6, 2])
    output, state = network(packed)
    return output.data, state


@REGISTRY.case("aten", "lstm-cell", torch.float32, torch.float16, tolerance=Tolerance.LOOSE)
def _cell(site: Site) -> Any:
    network = site.module(lambda: nn.LSTMCell(16, 24))
    return network(site.normal(6, 16), (site.normal(6, 24), site.normal(6, 24)))


@REGISTRY.case("aten", "ctc-loss")
def _ctc(site: Site) -> Any:
    logits, targets = site.normal(20, 3, 8, grad=True), site.integers(12, low=1, high=8)
    lengths = [torch.tensor(values, device=site.device) for values in ([20, 18, 20], [5, 4, 3])]
    return site.with_gradients(nn.functional.ctc_loss(logits.log_softmax(-1), targets, *lengths), logits)


@REGISTRY.case("cudnn", "ctc-loss", refusals=("Expected all tensors to be on the same device",))
def _ctc_cudnn(site: Site) -> Any:
    """cuDNN takes 32-bit targets on the CPU and inputs of full length; where torch does not use it, it refuses."""
    logits = site.normal(20, 3, 8, grad=True)
    targets = site.integers(12, low=1, high=8).cpu().int()
    losses = nn.functional.ctc_loss(logits.log_softmax(-1), targets, (20, 20, 20), (5, 4, 3))
    return site.with_gradients(losses, logits)
