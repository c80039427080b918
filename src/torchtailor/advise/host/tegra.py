"""Jetson and DRIVE systems: known by their release file and device tree rather than by a driver's answer."""

from __future__ import annotations

import re
from functools import cache

import msgspec

from torchtailor.advise.host.model import CapabilityText, Driver, GpuDevice, Note, Tegra, VersionText
from torchtailor.advise.host.probe import Probe
from torchtailor.catalog.schema import Dotted
from torchtailor.core.tables import read_table


class Chip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Tegra chip and its GPU."""

    name: str
    capability: CapabilityText
    first_l4t: VersionText
    last_l4t: VersionText | None = None
    skips: tuple[int, ...] = ()
    unified_from: VersionText | None = None

    def unified(self, l4t: str | None) -> bool:
        """Whether its driver stack is the servers' under this L4T, or under any if it is unknown."""
        return self.unified_from is not None and Dotted(l4t or self.first_l4t) >= Dotted(self.unified_from)

    def has(self, l4t: str) -> bool:
        """Whether an L4T release exists for it."""
        major = Dotted(l4t).major
        late = self.last_l4t is not None and major > Dotted(self.last_l4t).major
        return Dotted(self.first_l4t).major <= major and not late and major not in self.skips


class JetPack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JetPack and the L4T release it begins with."""

    l4t: VersionText
    jetpack: str
    cuda: VersionText
    glibc: VersionText
    drivers: tuple[str, ...] = ()
    note: str = ""


class TegraTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table in data/tegra.toml."""

    chip: tuple[Chip, ...]
    jetpack: tuple[JetPack, ...]

    def find_chip(self, name: str | None) -> Chip | None:
        return next((chip for chip in self.chip if chip.name == name), None)

    def chip_of(self, capability: str) -> Chip | None:
        return next((chip for chip in self.chip if chip.capability == capability), None)

    def jetpack_of(self, l4t: str) -> JetPack | None:
        older = [row for row in self.jetpack if Dotted(row.l4t) <= Dotted(l4t)]
        return max(older, key=lambda row: Dotted(row.l4t), default=None)

    def jetpacks_of(self, chip: Chip) -> tuple[JetPack, ...]:
        """The JetPacks that exist for a chip, oldest first."""
        return tuple(row for row in self.jetpack if chip.has(row.l4t))

    def by_driver(self, driver: str, chip: Chip) -> JetPack | None:
        """The JetPack of a chip with a driver that nvidia-smi prints, by the longest beginning that is known."""
        fits = [
            (len(start), row)
            for row in self.jetpacks_of(chip)
            for start in row.drivers
            if f"{driver}.".startswith(f"{start}.")
        ]
        return max(fits, key=lambda fit: fit[0])[1] if fits else None

    def by_jetpack(self, version: str) -> JetPack | None:
        """The row of JetPack 7.2, or of the newest one not above it (6.2.1 is 6.2's)."""
        older = [row for row in self.jetpack if Dotted(row.jetpack) <= Dotted(version)]
        return max(older, key=lambda row: Dotted(row.jetpack), default=None)


@cache
def tegra_table() -> TegraTable:
    return read_table("advise.host", "tegra.toml", TegraTable)


def describe_tegra(model: str, chip: str | None, l4t: str | None) -> Tegra:
    """A Tegra system, with what its chip and L4T release mean."""
    known = tegra_table().find_chip(chip)
    newest = l4t or (known.last_l4t if known else None)  # unknown: the last that the chip can have, if there is one
    row = tegra_table().jetpack_of(newest) if newest else None
    return Tegra(
        model=model,
        chip=chip,
        l4t=l4t,
        jetpack=row.jetpack if row else None,
        cuda=row.cuda if row else None,
        unified=known is not None and known.unified(l4t),
    )


def tegra_notes(tegra: Tegra) -> tuple[Note, ...]:
    """What a JetPack means for everything that is built here."""
    row = tegra_table().by_jetpack(tegra.jetpack) if tegra.jetpack else None
    return (Note(topic="jetpack", text=f"{tegra.model}: {row.note}"),) if row and row.note else ()


def detect_tegra(probe: Probe) -> Tegra | None:
    """None where this is not a Tegra system."""
    release = probe.read("/etc/nv_tegra_release")
    compatible = probe.read("/proc/device-tree/compatible") or ""
    chip = re.search(r"nvidia,(tegra\d+)", compatible)
    if release is None and chip is None:
        return None
    model = (probe.read("/proc/device-tree/model") or "").strip("\0\n ")
    return describe_tegra(model or "NVIDIA Tegra", chip[1] if chip else None, parse_l4t(release or ""))


def tegra_with_gpus(tegra: Tegra | None, gpus: tuple[GpuDevice, ...], driver: Driver | None) -> Tegra | None:
    """The same with what the GPUs and the driver show: containers hide the device tree, the release file, or both."""
    table = tegra_table()
    own = next((gpu for gpu in gpus if gpu.capability and table.chip_of(gpu.capability)), None)
    chip = table.find_chip(tegra.chip) if tegra else None
    if chip is None and own is not None and own.capability:
        chip = table.chip_of(own.capability)
        model, l4t = (tegra.model, tegra.l4t) if tegra else (own.name, None)
        tegra = describe_tegra(model, chip.name if chip else None, l4t)
    if tegra is None or chip is None or tegra.l4t is not None or driver is None:
        return tegra
    row = table.by_driver(driver.version, chip)
    return msgspec.structs.replace(tegra, unified=chip.unified(row.l4t)) if row else tegra


def parse_l4t(text: str) -> str | None:
    """`# R36 (release), REVISION: 4.3, ...` -> `36.4.3`."""
    match = re.search(r"R(\d+) \(release\), REVISION: (\d+(?:\.\d+)*)", text)
    return f"{match[1]}.{match[2]}" if match else None
