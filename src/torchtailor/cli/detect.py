"""`torchtailor detect`: what this machine is, or what one described in a file is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torchtailor.advise.host.model import Host
    from torchtailor.catalog import Catalog


def command(
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Show a description saved elsewhere; `-` is standard input."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, to be saved and used with --from.")] = False,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write everything that was read, so that a bug report can be replayed."),
    ] = None,
) -> None:
    """Describe this machine: CPU, GPUs, driver, tools."""
    from torchtailor.advise.host.detect import detect, detect_recorded
    from torchtailor.advise.host.store import load
    from torchtailor.catalog import load_catalog
    from torchtailor.core.errors import UsageError

    if source is not None and record is not None:
        raise UsageError("--from and --record are mutually exclusive.", "Record on the machine itself.")
    catalog = load_catalog()
    if source is not None:
        host = load(source)
    else:
        host = detect(catalog=catalog) if record is None else detect_recorded(record, catalog)
    _show(host, catalog, json=json)


def _show(host: Host, catalog: Catalog, *, json: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from torchtailor.cli.ui import out, print_json

    if json:
        print_json("host", host)
        return
    rows = _rows(host, catalog)
    if not out().is_terminal:
        width = max(len(label) for label, _ in rows)
        for label, text in rows:
            out().print(Text(f"{label:<{width}}  {text}"))
        return
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(style="bold", no_wrap=True)
    drawn.add_column(overflow="fold")
    for label, text in rows:
        drawn.add_row(label, Text(text, style="yellow" if label == "Note" else ""))
    out().print(drawn)


def _rows(host: Host, catalog: Catalog) -> list[tuple[str, str]]:
    """Label and text, in the order of interest."""
    from torchtailor.advise.recommendation import Workload
    from torchtailor.advise.recommendation.request import rank_isas
    from torchtailor.cli.ui import human_bytes

    cpu, system, room = host.cpu, host.system, host.room
    isas = rank_isas(catalog.isas.values(), cpu.arch, cpu.flags, Workload.GENERAL)
    rows = [("CPU", f"{cpu.name} ({cpu.vendor}, {cpu.arch}, {cpu.microarchitecture})")]
    sockets = f" in {cpu.sockets} sockets" if cpu.sockets > 1 else ""
    rows.append(("", f"{cpu.cores} cores{sockets}, {cpu.threads} threads, {cpu.usable} usable"))
    rows.append(
        ("", f"supports {', '.join(isa.name for isa in isas.runnable) or 'none of the instruction sets in the matrix'}")
    )
    for gpu in host.gpus:
        memory = f", {human_bytes(gpu.memory)}" if gpu.memory else ", memory shared" if gpu.integrated else ""
        capability = f"compute capability {gpu.capability}" if gpu.capability else "compute capability unknown"
        hidden = "" if gpu.visible else ", hidden by CUDA_VISIBLE_DEVICES"
        mig = f", {len(gpu.mig)} MIG instances" if gpu.mig else ""
        rows.append((f"GPU {gpu.index}", f"{gpu.name}, {capability}{memory}{mig}{hidden}"))
    if not host.gpus:
        rows.append(("GPU", "none"))
    if host.driver is not None:
        cuda = f", supports CUDA up to {host.driver.cuda}" if host.driver.cuda else ""
        rows.append(("Driver", f"{host.driver.version}{cuda} (from {host.driver.source})"))
    if host.tegra is not None:
        known = f"L4T {host.tegra.l4t}, JetPack {host.tegra.jetpack}" if host.tegra.l4t else "L4T release unknown"
        rows.append(("Tegra", f"{host.tegra.model}, {known}{', SBSA' if host.tegra.unified else ''}"))
    libc = f", {system.libc} {system.libc_version or ''}".rstrip() if system.libc else ", C library unknown"
    inside = (f", in {system.container}" if system.container else "") + (", under WSL" if system.wsl else "")
    kernel = f"{'Linux' if system.linux else 'kernel'} {system.kernel}"
    rows.append(("System", f"{system.os}, {kernel}{libc if system.linux else ''}{inside}"))
    limit = f", limited to {human_bytes(room.memory_limit)}" if room.memory_limit else ""
    available = human_bytes(room.memory_available)
    rows.append(("Memory", f"{human_bytes(room.memory_total)}, {available} available{limit}"))
    rows.append(("Disk", f"{human_bytes(room.disk_free)} free at {room.disk_path}"))
    tools = [f"{tool.name} {tool.version}" if tool.version else tool.name for tool in host.tools]
    rows.append(("Tools", ", ".join(tools) or "none"))
    for torch in host.torches:
        without = f"for {torch.other}" if torch.other else "CPU only" if torch.cuda is None else "GPU code not read"
        code = ", ".join(torch.architectures) or without
        rows.append(("PyTorch", f"{torch.version} for Python {torch.python} at {torch.path}: {code}"))
    return rows + [("Note", note.text) for note in host.notes]
