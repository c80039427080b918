"""The results of prove.py as Markdown tables, for docs/gpu-results.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchtailor.verification.compare import CaseVerdict
from torchtailor.verification.measures import Figure, ratios

RIGHT = ("tailored", "recompressed")


def markdown(found: Mapping[str, Any]) -> str:
    """All results that are available."""
    lines = list(_machine(found))
    for part in (_sizes, _libraries, _suite, _starts, _throughput, _wrong, _verify):
        made = list(part(found))
        if made:
            lines += ["", *made]
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"


def _machine(found: Mapping[str, Any]) -> Iterator[str]:
    environment = found.get("suite_stock", {}).get("environment", {})
    host = found.get("host", {})
    yield "# On the GPU"
    yield ""
    names = ("gpu", "capability", "torch", "cuda", "cudnn", "nccl", "python", "machine")
    facts = [f"{name} {environment[name]}" for name in names if name in environment]
    if host.get("driver"):
        facts.append(f"driver {host['driver']}")
    yield ", ".join(facts) or "(the op suite has not been run)"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.0f}"


def _sizes(found: Mapping[str, Any]) -> Iterator[str]:
    stock = found.get("stock")
    if not stock:
        return
    rows = [["stock", _megabytes(stock["bytes"]), _megabytes(stock["library_bytes"]), "100 %", ""]]
    for name in (*RIGHT, "wrong"):
        if name in found:
            cut = found[name]
            share = f"{cut['library_bytes'] / stock['library_bytes']:.1%}"
            rows.append(
                [name, _megabytes(cut["bytes"]), _megabytes(cut["library_bytes"]), share, f"{cut['seconds']:.1f}"]
            )
    yield "## Size"
    yield ""
    yield from _table(["copy", "all files, MB", "libraries, MB", "of stock", "tailoring, s"], rows)
    if "cp_seconds" in found:
        yield ""
        yield f"`cp -r` of the stock copy, warm: {found['cp_seconds']} s."


def _libraries(found: Mapping[str, Any]) -> Iterator[str]:
    stock = found.get("stock", {}).get("libraries")
    present = [name for name in RIGHT if name in found]
    if not stock or not present:
        return
    rows = [
        [name, _megabytes(size), *(_megabytes(found[cut]["libraries"].get(name, 0)) for cut in present)]
        for name, size in sorted(stock.items(), key=lambda item: -item[1])
        if size > 10_000_000
    ]
    yield "## Libraries over 10 MB, MB"
    yield ""
    yield from _table(["library", "stock", *present], rows)


def _suite(found: Mapping[str, Any]) -> Iterator[str]:
    present = [name for name in RIGHT if f"compare_{name}" in found]
    if "suite_stock" not in found:
        return
    stock = found["suite_stock"]
    yield "## Op suite"
    yield ""
    yield f"Stock: {stock['pass']} pass, {stock['fail']} fail, {stock['not-applicable']} not applicable."
    for name in present:
        yield f"{name.capitalize()} against two runs of stock: {found[f'compare_{name}']['summary']}."
    for name, reason in [*stock["failed"], *stock["skipped"]]:
        yield f"- stock, `{name}`: {reason}"
    for cut in present:
        for name, verdict, reason in found[f"compare_{cut}"]["bad"]:
            yield f"- **{cut}, `{name}` {verdict}**: {reason}"
    if not present:
        return
    rows = []
    for library in found[f"compare_{present[0]}"]["libraries"]:
        row: list[object] = [library]
        for cut in present:
            counts = found[f"compare_{cut}"]["libraries"].get(library, {})
            row += [counts.get(verdict.value, 0) for verdict in (CaseVerdict.IDENTICAL, CaseVerdict.CLOSE)]
            row.append(sum(counts.get(verdict.value, 0) for verdict in CaseVerdict if verdict.bad))
        rows.append(row)
    head = ["library", *(f"{cut}: {word}" for cut in present for word in ("identical", "close", "wrong"))]
    yield ""
    yield from _table(head, rows)
    close = sorted({name for cut in present for name in found[f"compare_{cut}"]["close"]})
    if close:
        yield ""
        yield (
            "Close, because stock itself does not give the same bytes twice: "
            + ", ".join(f"`{n}`" for n in close)
            + "."
        )


def _figures(plain: Mapping[str, Sequence[float]]) -> dict[str, Figure]:
    return {name: Figure(tuple(values)) for name, values in plain.items()}


def _ratio_rows(found: Mapping[str, Any], state: str, scale: float) -> list[list[str]]:
    others = [name for name in (*RIGHT, "stock again") if f"measure_{name}" in found]
    stock = _figures(found["measure_stock"][state])
    compared = {
        name: {ratio.name: ratio for ratio in ratios(stock, _figures(found[f"measure_{name}"][state]))}
        for name in others
    }
    rows = []
    for name, figure in stock.items():
        size = figure.median / (1e6 if "memory" in name else 1) * (1 if "memory" in name else scale)
        unit = " MB" if "memory" in name else ""
        cells = [compared[other].get(name) for other in others]
        texts = [f"{ratio.value:.3f} ± {ratio.noise:.3f}" if ratio else "" for ratio in cells]
        rows.append([name, f"{size:,.2f}{unit}", *texts])
    return rows


def _starts(found: Mapping[str, Any]) -> Iterator[str]:
    if "measure_stock" not in found:
        return
    others = [name for name in (*RIGHT, "stock again") if f"measure_{name}" in found]
    yield "## Start and memory, as ratios to stock"
    yield ""
    yield f"Cold: page cache emptied by {found['measure_stock']['caches']} before each start."
    yield "'Stock again' is the same files measured a second time: the noise of the machine."
    for state in ("cold", "warm"):
        rows = _ratio_rows(found, state, 1)
        if rows:
            yield ""
            yield from _table([state, "stock", *others], rows)


def _throughput(found: Mapping[str, Any]) -> Iterator[str]:
    if not found.get("measure_stock", {}).get("throughput"):
        return
    others = [name for name in (*RIGHT, "stock again") if f"measure_{name}" in found]
    yield "## Throughput: time a call, as ratios to stock"
    yield ""
    yield from _table(["op", "stock, us", *others], _ratio_rows(found, "throughput", 1e6))


def _wrong(found: Mapping[str, Any]) -> Iterator[str]:
    presence = found.get("presence")
    if not presence:
        return
    yield "## Our check before CUDA"
    yield ""
    for name, check in presence.items():
        yield f"- {name}: **{check['outcome']}** in {check['seconds']} s: {check['reason']}"
        if "cuda_says" in check:
            yield f"  CUDA itself: {check['cuda_says']}"


def _verify(found: Mapping[str, Any]) -> Iterator[str]:
    runs = [(name, found[f"verify_{name}"]) for name in (*RIGHT, "wrong") if f"verify_{name}" in found]
    if not runs:
        return
    yield "## `torchtailor verify`"
    yield ""
    words = ("pass", "fail", "not-applicable")
    rows = [
        [name, run["exit"], *(run["counts"][word] for word in words), f"{run['seconds']:.0f}"] for name, run in runs
    ]
    yield from _table(["copy", "exit code", *words, "seconds"], rows)
    for name, run in runs:
        yield ""
        yield f"`{run['command']}`" + (":" if run["failed"] else "")
        for line in run["failed"]:
            yield f"- {name}: **fail**: {line}"
