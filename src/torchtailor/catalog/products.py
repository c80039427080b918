"""Finds the architecture behind a GPU's name: as people write it, as drivers print it, or by its PCI number.

The catalog's own products come first, then pci.ids. A name that several chips carry is answered with all of them and
taken for the one of the lowest capability, so that nothing is promised that the chip may lack.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from torchtailor.catalog.gpus import Capability, Gpu
from torchtailor.catalog.schema import Dotted, Strict, decode
from torchtailor.core.errors import NoMatchError
from torchtailor.core.tables import read_table

Words = tuple[str, ...]

_NVIDIA = "10de"
_PCI = re.compile(r"(?<![0-9a-f])(?:0x)?([0-9a-f]{4}):(?:0x)?([0-9a-f]{4})(?![0-9a-f:.])", re.IGNORECASE)
_LSPCI = re.compile(r"\b(?P<chip>[A-Z]{2}\d{2,3}B?)[A-Z]* \[(?P<product>[^\]]+)\]")
# `GRID A100D-20C`, `NVIDIA A40-48Q`, `GRID A100-3-20C`: a virtual GPU's profile after the board's name
_VGPU = re.compile(r"-\d+(?:-\d+)?[abcqv]\d?(?:me)?$", re.IGNORECASE)
_BOARD = re.compile(r"(?:nvidia )?(?:drive-)?(pg\d{3})-(?:\d{3}|prod)", re.IGNORECASE)  # NVIDIA PG506-230
# `GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-...)`, a line of `nvidia-smi -L`, and the MIG instances below it
_SMI_LINE = re.compile(r"\s*GPU \d+: (?P<name>.+?)(?: \(UUID: [^)]*\))?\s*", re.IGNORECASE)
_MIG_LINE = re.compile(r"\s*(?:mig )?\d+(?:c\.\d+)?g\.\d+gb(?:\+\S+)?(?:\s+device\s+\d+:?.*)?\s*", re.IGNORECASE)
_VGPU_BOARD = re.compile(r"((?:[a-z]\d{1,3})|\d{4})[a-z]{1,2}")
_MOST_COMPARED = 12  # names that come near
_MOST_READINGS = 2  # a name that may mean more capabilities than this says too little


class OtherAccelerator(Strict, frozen=True, kw_only=True):
    """An accelerator that is not NVIDIA's, and where its PyTorch comes from."""

    vendor: str
    pattern: str
    name: str
    text: str


class EndedGpus(Strict, frozen=True, kw_only=True):
    """GPUs from before every capability in the catalog, by their names."""

    family: str
    capability: str
    pattern: str
    text: str


class _Vocabulary(Strict, frozen=True, kw_only=True):
    ignored: frozenset[str]
    board: frozenset[str]
    board_patterns: tuple[str, ...]
    optional: frozenset[str]
    embedded: frozenset[str]


class _ChipFile(Strict, frozen=True, kw_only=True):
    """The tables of data/chips.toml."""

    capability: Mapping[str, Capability]
    board: Mapping[str, str]
    words: _Vocabulary
    other: tuple[OtherAccelerator, ...]
    ended: tuple[EndedGpus, ...]


class _PciFile(Strict, frozen=True, kw_only=True):
    """The tables of data/pci.toml: product by number, by chip."""

    version: str
    chip: Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A device of pci.ids; its capability is None where no source gives it."""

    chip: str
    product: str
    capability: Capability | None

    @property
    def name(self) -> str:
        """The product, or the first of several, or the chip where it has no name."""
        return self.product.split(" / ")[0] or self.chip


@dataclass(frozen=True, slots=True)
class Reading:
    """One thing that a name can mean."""

    product: str
    capability: Capability
    chip: str = ""

    def __str__(self) -> str:
        return f"{self.product} ({f'{self.chip}, ' if self.chip else ''}{self.capability})"


@dataclass(frozen=True, slots=True)
class GpuMatch:
    """The architecture that a name was taken for, and all that it can mean, lowest capability first."""

    gpu: Gpu
    readings: tuple[Reading, ...] = ()
    decided: str = ""  # why it is not the lowest

    @property
    def doubt(self) -> str:
        """A sentence on the readings where there are several; empty where the name is clear."""
        if len(self.readings) < 2:
            return ""
        taken = self.decided or f"assuming the lower, {self.gpu.capability}"
        return f"could be {' or '.join(map(str, self.readings))}: {taken}."

    def under(self, driver: Dotted, gpus: Mapping[Capability, Gpu]) -> GpuMatch:
        """The same where the driver is known: readings that it does not support are ruled out."""
        left = [
            gpus[reading.capability] for reading in self.readings if _supports(driver, gpus.get(reading.capability))
        ]
        if len(self.readings) < 2 or not 0 < len(left) < len(self.readings):
            return self
        return replace(self, gpu=left[0], decided=f"driver {driver} supports {left[0].capability} alone")


def _supports(driver: Dotted, gpu: Gpu | None) -> bool:
    if gpu is None:
        return False
    ended = gpu.last_driver_branch is not None and driver.major > gpu.last_driver_branch
    return not ended and not (gpu.first_driver is not None and driver < gpu.first_driver)


@cache
def _chip_file() -> _ChipFile:
    return decode(read_table("catalog", "chips.toml", dict[str, Any]), _ChipFile, {"other": "name", "ended": "family"})


@cache
def _board_word() -> re.Pattern[str]:
    vocabulary = _chip_file().words
    return re.compile("|".join((*vocabulary.board_patterns, *map(re.escape, vocabulary.board))))


@cache
def _pci_file() -> _PciFile:
    return read_table("catalog", "pci.toml", _PciFile)


def pci_gpu(device: str) -> PciGpu | None:
    """NVIDIA's GPU with a PCI device number such as `2237`."""
    for chip, products in _pci_file().chip.items():
        if (product := products.get(device.lower().removeprefix("0x"))) is not None:
            return PciGpu(chip, product, _chip_file().capability.get(chip))
    return None


def product_names(gpus: Mapping[Capability, Gpu]) -> tuple[str, ...]:
    """Every product that has a name: the catalog's, then those of pci.ids with a known chip."""
    own = (name for gpu in gpus.values() if gpu.offered for name in gpu.all_products)
    return tuple(dict.fromkeys((*own, *(reading.product for _, reading in _pci_readings()))))


def other_accelerator(*, vendor: str) -> OtherAccelerator | None:
    """The kind of accelerator that a PCI vendor other than NVIDIA makes."""
    return next((other for other in _chip_file().other if other.vendor == vendor.removeprefix("0x")), None)


@cache  # all products are read for each name that is looked up
def words(name: str) -> Words:
    """`NVIDIA GeForce RTX 4070 Ti SUPER` -> rtx, 4070, ti, super; what only describes the board is left out."""
    text = re.sub(r"\(?\brev\.? ?\w+\)?", " ", name.lower())
    text = re.sub(r"\bmax-q\b", "maxq", re.sub(r"\bpci-?e\b", "pcie", text))
    text = re.sub(r"(?<=\d) (?=gb\b)", "", text)
    text = re.sub(
        r"(?<=\d)(?=(?:ti|super|ti ?super|laptop|mobile|sxm\d?|nvl|pcie)\b)|(?<=\dti)(?=super\b)|(?<=\btesla)(?=\w)|"
        r"(?<=\bgeforce)(?=\w)|(?<=\bquadro)(?=\w)|(?<=\bnvidia)(?=\w)|(?<=\b[45]090)(?=d\b)|"
        r"(?<=[rg]tx[45]090)(?=d\b)|(?<=[rg]tx)(?=a?\d)|(?<=\bgt)(?=\d)",
        " ",
        text,
    )
    vocabulary = _chip_file().words
    found = [word for word in re.findall(r"[a-z0-9]+", text) if word not in vocabulary.ignored]
    return tuple(word for word in found if not _board_word().fullmatch(word))


def find_product(name: str, gpus: Mapping[Capability, Gpu]) -> GpuMatch:
    """The architecture that a name means, with every reading of it; an error names what comes near."""
    if match := _by_number(name, gpus):
        return match
    if smi := _SMI_LINE.fullmatch(name):
        return find_product(smi["name"], gpus)
    if _MIG_LINE.fullmatch(name):
        raise NoMatchError(
            f"{name.strip()!r} is an instance of a GPU, and does not say of which.",
            "Give the GPU that it is a part of: the line above it in `nvidia-smi -L`.",
        )
    if (listed := _LSPCI.search(name)) and listed["chip"] in _chip_file().capability:
        return _match([Reading(listed["product"], _chip_file().capability[listed["chip"]], listed["chip"])], gpus, name)
    if chip := _chip_file().capability.get(name.strip().upper()):
        return _match([Reading(name.strip().upper(), chip)], gpus, name)
    if (board := _BOARD.fullmatch(name.strip())) and (chip_name := _chip_file().board.get(board[1].upper())):
        return _match([Reading(board[0], _chip_file().capability[chip_name], chip_name)], gpus, name)
    profile = _VGPU.search(name)
    wanted = words(name[: profile.start()] if profile else name)
    if not wanted:
        raise _unknown(name, gpus)
    readings = _read(wanted, gpus, loosely=_ended(name) is None)
    if not readings and profile:  # the board's letters: A100D is an A100 of 80 GB, RTX8000P a passive one
        readings = _read(tuple(_VGPU_BOARD.sub(r"\1", word) for word in wanted), gpus)
    if not readings:
        raise _unknown(name, gpus)
    return _match(readings, gpus, name)


def _by_number(name: str, gpus: Mapping[Capability, Gpu]) -> GpuMatch | None:
    """`10de:2237`, also inside a line of lspci."""
    for vendor, device in _PCI.findall(name):
        if other := other_accelerator(vendor=vendor.lower()):
            raise NoMatchError(f"{name.strip()!r} is not an NVIDIA GPU ({other.name}).", other.text)
        if vendor.lower() != _NVIDIA:
            continue
        found = pci_gpu(device)
        if found is None or found.capability is None:
            chip = f" (chip {found.chip})" if found else ""
            raise NoMatchError(f"The capability of the PCI device {vendor}:{device}{chip} is not known.", _ASK)
        return _match([Reading(found.product or found.chip, found.capability, found.chip)], gpus, name)
    return None


_ASK = "Give its compute capability instead: `nvidia-smi --query-gpu=compute_cap --format=csv,noheader`."


def _read(wanted: Words, gpus: Mapping[Capability, Gpu], *, loosely: bool = True) -> list[Reading]:
    """What the words mean, by the strictest rule that finds anything; `loosely` also as a part of a longer name."""
    own = [(words(name), Reading(name, gpu.capability)) for gpu in gpus.values() for name in gpu.all_products]
    if exact := [reading for product, reading in own if product == wanted]:
        return exact
    embedded = [(words(name), Reading(name, gpu.capability)) for gpu in gpus.values() for name in gpu.embedded]
    if not _chip_file().words.embedded.isdisjoint(wanted):
        return _read_embedded(wanted, embedded)
    every = [*own, *_pci_readings()]
    if exact := [reading for product, reading in every if product == wanted]:
        return exact
    if not loosely:
        return []
    digits = any(character.isdigit() for word in wanted for character in word)
    telling = "titan" in wanted or (digits and len("".join(wanted)) > 1)  # "2" is no DRIVE PX 2
    if shorter := [reading for product, reading in every if telling and _holds(product, wanted)]:
        return shorter
    brand, *bare = wanted
    if brand not in _chip_file().words.optional:
        return []
    # "Tesla A100", as some still call it; GRID boards of virtual GPUs may also lack their own brand
    exact = [reading for product, reading in every if product == tuple(bare)]
    return exact or [reading for product, reading in every if brand == "grid" and _holds(product, bare)]


def _read_embedded(wanted: Words, embedded: Sequence[tuple[Words, Reading]]) -> list[Reading]:
    """Jetsons are named in many ways: the longest product inside the name, else all that the name can be short for."""
    inside = [(len(product), reading) for product, reading in embedded if _holds(wanted, product)]
    if inside:
        longest = max(length for length, _ in inside)
        return [reading for length, reading in inside if length == longest]
    short = [word for word in wanted if word != "tegra"] or wanted
    return [reading for product, reading in embedded if _subsequence(product, short)]


@cache
def _pci_readings() -> tuple[tuple[Words, Reading], ...]:
    return tuple(_each_pci_reading())


def _each_pci_reading() -> Iterator[tuple[Words, Reading]]:
    for chip, products in _pci_file().chip.items():
        capability = _chip_file().capability.get(chip)
        if capability is None:
            continue
        for name in dict.fromkeys(name for product in products.values() for name in product.split(" / ") if name):
            if found := words(name):
                yield found, Reading(name, capability, chip)


def _match(readings: Sequence[Reading], gpus: Mapping[Capability, Gpu], name: str) -> GpuMatch:
    """The lowest reading; one of each capability is kept."""
    distinct: dict[Capability, Reading] = {}
    for reading in readings:
        distinct.setdefault(reading.capability, reading)
    ranked = [distinct[capability] for capability in sorted(distinct)]
    if len(ranked) > _MOST_READINGS:
        raise unclear(name, ranked)
    lowest = ranked[0].capability
    if lowest not in gpus:
        raise NoMatchError(f"{name!r} is of compute capability {lowest}, which is not in the catalog.", _ASK)
    return GpuMatch(gpus[lowest], tuple(ranked))


def unclear(name: str, readings: Sequence[Reading]) -> NoMatchError:
    """The error for a name that says too little, with all that it can mean."""
    return NoMatchError(
        f"{name!r} could mean GPUs of several architectures: {', '.join(map(str, readings))}.",
        f"Write the full product name, or the compute capability, such as {readings[-1].capability}.",
    )


def _unknown(name: str, gpus: Mapping[Capability, Gpu]) -> NoMatchError:
    lower = name.lower()
    for other in _chip_file().other:
        if "nvidia" not in lower and re.search(other.pattern, lower):
            return NoMatchError(f"{name!r} is not an NVIDIA GPU ({other.name}).", other.text)
    if ended := _ended(name):
        return NoMatchError(
            f"{name!r} is a GPU of the {ended.family} generation (compute capability {ended.capability}), which "
            "PyTorch no longer supports.",
            ended.text,
        )
    if re.fullmatch(r"\d{1,2}\.\S{0,3}", name.strip()):
        known = ", ".join(str(capability) for capability in gpus)
        return NoMatchError(f"{name!r} is not a compute capability.", f"Known: {known}; or give the GPU's name.")
    near = _near(words(name), gpus)
    close = f" Did you mean {' or '.join(near)}?" if near else ""
    return NoMatchError(f"No GPU is known as {name!r}.{close}", _ASK)


def _ended(name: str) -> EndedGpus | None:
    """The generation before every capability in the catalog that has this name."""
    lower = re.sub(r"\b(?:nvidia|geforce|gpu)\b", " ", name.lower())
    plain = " ".join(re.findall(r"[a-z0-9]+", lower))
    return next((ended for ended in _chip_file().ended if re.fullmatch(ended.pattern, plain)), None)


def _near(wanted: Words, gpus: Mapping[Capability, Gpu]) -> list[str]:
    """Up to three products whose names come near."""
    if not any(character.isdigit() for word in wanted for character in word):
        return []
    known = {" ".join(product): reading.product for product, reading in _pci_readings() if reading.product}
    known |= {" ".join(words(name)): name for gpu in gpus.values() for name in gpu.all_products}
    text = " ".join(wanted)
    near = difflib.get_close_matches(text, known, n=_MOST_COMPARED, cutoff=0.75)
    swapped = [other for other in near if "".join(sorted(other)) == "".join(sorted(text))]  # the likeliest slip
    without = [" ".join(wanted[:-1])] if " ".join(wanted[:-1]) in known else []  # there is no 4090 Ti
    return [known[other] for other in dict.fromkeys((*swapped, *without, *near))][:3]


def _holds(longer: Sequence[str], shorter: Sequence[str]) -> bool:
    """Whether the shorter run of words stands in the longer one, unbroken."""
    size = len(shorter)
    return any(tuple(longer[at : at + size]) == tuple(shorter) for at in range(len(longer) - size + 1))


def _subsequence(longer: Iterable[str], shorter: Sequence[str]) -> bool:
    """Whether the shorter words stand in the longer ones in order, gaps allowed."""
    remaining = iter(longer)
    return all(word in remaining for word in shorter)
