"""What a pasted text says about a machine: nvidia-smi, lspci, /proc/cpuinfo, lscpu, a traceback, or a product's name.

Everything found is given in words, so that the user sees what was understood and can correct it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.versions import Dotted
from torchtailor.errors import TorchtailorError
from torchtailor.host.cpu import detect_cpu
from torchtailor.host.model import Cpu
from torchtailor.host.probe import Basics, Recording, ReplayProbe

_MOST = 200_000  # characters; /proc/cpuinfo of 512 cores says the same 512 times
_SMI_ROW = re.compile(r"^\|\s+\d+\s+(?P<name>\S.*?)\s+(?:On|Off|N/A)\s+\|", re.MULTILINE)
_SMI_LIST = re.compile(r"^GPU \d+: (?P<name>.+?) \(UUID: ", re.MULTILINE)
_SMI_QUERY = re.compile(r"^\s*Product Name\s*:\s*(?P<name>\S.*?)\s*$", re.MULTILINE)
_DRIVER = re.compile(r"(?:Driver Version|NVRM version:.*?Kernel Module(?: for \w+)?)\s*:?\s+(\d{3}\.\d+(?:\.\d+)?)")
_CUDA = re.compile(r"CUDA(?: UMD)? Version\s*:\s*(\d+\.\d+)")
_CSV_NAME = re.compile(r"(?:NVIDIA|Tesla|Quadro|GeForce|GRID|TITAN)\b.*")
_PCI_GPU = re.compile(r"(?:VGA compatible controller|3D controller|Display controller|Processing accelerators).*")
_INCOMPATIBLE = re.compile(r"(?P<name>\S.*?) with CUDA capability (?P<sm>sm_\d{2,3}) is not compatible")
_FOUND_GPU = re.compile(r"Found GPU\d+ (?P<name>\S.*?) which is of (?:cuda|compute) capability (?:\(CC\) )?(\d+\.\d)")
_NO_IMAGE = "no kernel image is available"
_OLD_DRIVER = re.compile(r"driver on your system is too old \(found version (\d+)\)")
_PYTHON = re.compile(r"(?:\bPython |/python|\\Python)(3)\.?(\d{1,2})(?!\d)")
_MODEL = re.compile(r"^\s*Model name:\s*(\S.*?)\s*$", re.MULTILINE)
_LSCPU_FLAGS = re.compile(r"^\s*Flags:\s*(\S.*)$", re.MULTILINE)
_GLIBC = re.compile(r"(?:GLIBC|glibc|GNU libc)\D{0,12}(2\.\d+)")


@dataclass(frozen=True, slots=True)
class Understood:
    """The parts of a machine that a text names, and sentences about them; None and empty where it says nothing."""

    gpus: tuple[str, ...] = ()
    cpu: str | None = None
    pasted_cpu: Cpu | None = None
    driver: str | None = None
    cuda: str | None = None
    jetpack: str | None = None
    system: str | None = None
    python: str | None = None
    notes: tuple[str, ...] = ()


def understand(catalog: Catalog, pasted: str) -> Understood:
    """Read a text of any of these kinds, or several after each other."""
    text = pasted[:_MOST].replace("\r\n", "\n")
    notes: list[str] = []
    names = _gpu_names(catalog, text, notes)
    driver = _driver(catalog, text, notes)
    cpu, described = _cpu(catalog, text, notes)
    if not names and cpu is None and described is None and driver is None:
        names, cpu = _by_name(catalog, text, notes)
    cuda = _CUDA.search(text)
    python = _PYTHON.search(text)
    found = Understood(
        gpus=tuple(names),
        cpu=cpu,
        pasted_cpu=described,
        driver=driver,
        cuda=cuda[1] if cuda else None,
        system=_system(text),
        python=f"{python[1]}.{python[2]}" if python else None,
        notes=tuple(notes),
    )
    if found == Understood():
        return Understood(notes=("Nothing about a machine was found in this text.",))
    return found


def _gpu_names(catalog: Catalog, text: str, notes: list[str]) -> list[str]:
    """The GPUs that a text lists, one name each, by the first kind of list that is in it."""
    kinds = (_by_table(text), _by_csv(text), _by_traceback(text), _by_lspci(text))
    for kind in kinds:
        found = [name for name in kind if _is_known(catalog, name, notes)]
        if found:
            return found
    if _NO_IMAGE in text:
        notes.append(
            "“no kernel image is available” means that the installed PyTorch has no code for this GPU. The text "
            "does not name the GPU: choose it, or paste nvidia-smi as well."
        )
    return []


def _is_known(catalog: Catalog, name: str, notes: list[str]) -> bool:
    try:
        catalog.find_gpu(name)
    except TorchtailorError as error:
        sentence = f"{error.message} {error.hint}".strip()
        if sentence not in notes:
            notes.append(sentence)
        return False
    return True


def _by_table(text: str) -> Iterator[str]:
    for pattern in (_SMI_ROW, _SMI_LIST, _SMI_QUERY):
        names = [match["name"] for match in pattern.finditer(text)]
        if names:
            for name in names:
                yield name.removesuffix("...").strip()
            return


def _by_csv(text: str) -> Iterator[str]:
    """`nvidia-smi --query-gpu=... --format=csv`."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        names = [cell for cell in cells if len(cells) > 1 and _CSV_NAME.fullmatch(cell)]
        if names:
            yield names[0]


def _by_traceback(text: str) -> Iterator[str]:
    for match in _INCOMPATIBLE.finditer(text):
        name = match["name"].rpartition(": ")[2].strip()
        yield name if any(sign.isdigit() for sign in name) else match["sm"]
        return
    for match in _FOUND_GPU.finditer(text):
        yield match["name"]


def _by_lspci(text: str) -> Iterator[str]:
    for match in _PCI_GPU.finditer(text):
        line = match[0].partition(": ")[2]
        if "NVIDIA" in line or "10de:" in line.lower():
            yield line
    lines = [match[0].partition(": ")[2] for match in _PCI_GPU.finditer(text)]
    if not any("NVIDIA" in line or "10de:" in line.lower() for line in lines):
        yield from lines


def _driver(catalog: Catalog, text: str, notes: list[str]) -> str | None:
    if match := _DRIVER.search(text):
        return match[1]
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        for cell in cells:
            if len(cells) > 1 and re.fullmatch(r"[3-9]\d\d\.\d+(\.\d+)?", cell):
                return cell
    if old := _OLD_DRIVER.search(text):
        number = int(old[1])
        cuda = Dotted(f"{number // 1000}.{number % 1000 // 10}")
        branches = [one for one in catalog.drivers.values() if one.cuda is not None and one.cuda == cuda]
        if branches:
            newest = str(branches[-1].newest)
            notes.append(
                f"The message says that the driver runs CUDA {cuda}: that is branch R{branches[-1].branch}, taken as "
                f"{newest}. nvidia-smi shows the exact version."
            )
            return newest
    return None


def _cpu(catalog: Catalog, text: str, notes: list[str]) -> tuple[str | None, Cpu | None]:
    """The CPU by its flags, which decide, or by its name where there are none."""
    arm = re.search(r"^Features\s*:", text, re.MULTILINE) is not None
    if arm or re.search(r"^flags\s*:", text, re.MULTILINE):
        return None, _by_flags(text, "aarch64" if arm else "x86_64")
    model, flags = _MODEL.search(text), _LSCPU_FLAGS.search(text)
    if flags:
        arch = "aarch64" if re.search(r"Architecture:\s*aarch64", text) else "x86_64"
        name = model[1] if model else "unknown"
        key = "Features" if arch == "aarch64" else "flags"
        vendor = re.search(r"Vendor ID:\s*(\S+)", text)
        lines = f"processor : 0\nvendor_id : {vendor[1] if vendor else ''}\nmodel name : {name}\n{key} : {flags[1]}\n"
        return None, _by_flags(lines, arch)
    if model and (core := _core(catalog, model[1], notes)):
        return core, None
    return None, None


def _by_flags(cpuinfo: str, arch: str) -> Cpu:
    """The CPU of a machine of which nothing is known but its /proc/cpuinfo."""
    basics = Basics(arch=arch, kernel="", affinity=4096)
    return detect_cpu(ReplayProbe(Recording(basics=basics, files={"/proc/cpuinfo": cpuinfo})))


def _core(catalog: Catalog, name: str, notes: list[str]) -> str | None:
    try:
        catalog.microarchitecture(name)
    except TorchtailorError as error:
        notes.append(f"{error.message} {error.hint}".strip())
        return None
    return name


def _by_name(catalog: Catalog, text: str, notes: list[str]) -> tuple[list[str], str | None]:
    """Products that are only named, one a line or with commas: `2x RTX 4090, Ryzen 9 7950X`."""
    gpus: list[str] = []
    cpu: str | None = None
    parts = [part.strip() for line in text.splitlines() for part in line.split(",") if part.strip()]
    for part in parts[:16]:
        if len(part) > 80:
            continue
        count = re.match(r"(\d{1,2}) ?x ", part)
        name = part[count.end() :] if count else part
        doubts: list[str] = []
        if cpu is None and _core(catalog, name, []) and not _is_known(catalog, name, []):
            cpu = name
        elif _is_known(catalog, name, doubts):
            gpus += [name] * (min(int(count[1]), 16) if count else 1)
        else:
            notes.extend(doubt for doubt in doubts if "not an NVIDIA GPU" in doubt or "Did you mean" in doubt)
    return gpus, cpu


def _system(text: str) -> str | None:
    lower = text.lower()
    if "microsoft-standard-wsl" in lower:
        return "wsl"
    if re.search(r"\bdarwin\b|\bmacos\b", lower):
        return "macos"
    if re.search(r"\bmusl\b|alpine linux", lower):
        return "musl"
    glibc = _GLIBC.search(text)
    if glibc and Dotted(glibc[1]) < Dotted("2.28"):
        return "old"
    return None
