"""The GPUs that a text lists or mentions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.products import pci_gpu
from torchtailor.core.errors import TorchtailorError
from torchtailor.site.paste.lines import value_of

# A row of nvidia-smi: its number, its name, and persistence mode or, on Windows, the driver's model.
_SMI_ROW = re.compile(r"\|\s{1,6}\d{1,3}\s{1,4}(?P<name>\S.{0,60}?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM)\s*\|")
_SMI_LIST = re.compile(r"\s*(?:GPU models and configuration: ?)?GPU \d{1,3}: (?P<name>[^(]{2,80})(?:\(UUID: .*)?")
_SMI_QUERY = re.compile(r"\s*(?:Product Name|product_name)\s*:\s*(?P<name>\S.{1,80})", re.IGNORECASE)
_TORCH = re.compile(r"_CudaDeviceProperties\(name='(?P<name>[^']{2,80})'")
_FOUND_GPU = re.compile(r"Found GPU\d+ (?P<name>\S.{1,80}?) which is of (?:cuda|compute) capability")
_INCOMPATIBLE = " with CUDA capability sm_"
_BRANDED = re.compile(r"'?(?:NVIDIA|Tesla|Quadro|GeForce|GRID|TITAN)\b[^',|]{1,60}'?")
_CONTROLLER = re.compile(
    r"(?:VGA compatible controller|3D controller|Display controller|Processing accelerators)\"?(?: \[\w{4}\])?:? "
    r"(?P<device>\S.*)"
)
_HARDWARE = re.compile(r"\s*(?:product|Device-\d+): (?P<device>(?:NVIDIA )?[A-Z]{2}\d{2,3}[A-Z]{0,3} \[[^\]]{2,80}\])")
_NUMBER_ONLY = re.compile(r"NVIDIA Corporation\"? \"?Device ([0-9a-f]{4})\b")
_REVISION = re.compile(r" \(rev \w+\).*| \(prog-if .*| -r\w\w .*")
_BRACKETS = re.compile(r"([A-Z]{2}\w{2,6}) \[([^\]]{2,80})\]")
# Where a product's name can begin in a sentence.
_START = re.compile(
    r"(?<![A-Za-z0-9])(?:(?P<count>\d{1,2}) ?[x\u00d7] ?)?"
    r"(?P<start>NVIDIA|GeForce|Quadro|Tesla|TITAN|RTX|GTX|MX\d{3}|GT ?\d{3,4}|Jetson|DGX|CMP|GRID|T\d{3,4}"
    r"|(?:[ABHV]\d{2,3}[A-Z]?|L40S?|L4|T4|K40|K80|M40|M60|P40|P100|GB\d{2,3}|GH200)(?![A-Za-z0-9]))(?=(?P<rest>.{0,60}))",
    re.IGNORECASE,
)
_MOST_MENTIONS = 12
_MOST_WORDS = 7
_MOST_GPUS = 64


def listed_gpus(catalog: Catalog, lines: Sequence[str], notes: list[str]) -> list[str]:
    """The GPUs of the first kind of list that is in the text, one name each."""
    for kind in (_tables(lines), _messages(lines), _branded(lines)):
        found = [name for one in kind if (name := _known(catalog, one, notes))]
        if found:
            return found[:_MOST_GPUS]
    return _controllers(catalog, lines, notes)[:_MOST_GPUS]


def mentioned_gpus(catalog: Catalog, lines: Sequence[str]) -> list[str]:
    """GPUs in sentences, each once or as often as it says: `2x RTX 4090, Ryzen 9 7950X`."""
    found: dict[str, int] = {}
    starts = (match for line in lines for match in _START.finditer(line))
    for number, match in enumerate(starts):
        if number >= _MOST_MENTIONS:
            break
        name = _longest(catalog, match["start"] + match["rest"])
        if name and not any(known.endswith(name) for known in found):  # RTX 4090 of GeForce RTX 4090
            found.setdefault(name, int(match["count"]) if match["count"] else 1)
    return [name for name, count in found.items() for _ in range(max(1, min(count, 16)))]


def other_gpu(catalog: Catalog, lines: Sequence[str]) -> str:
    """The first accelerator of another vendor that has a line of its own; empty where there is none."""
    short = [value for line in lines[:200] if 2 < len(value := value_of(line)) < 80]
    return next((value for value in short[:40] if _other_vendor(catalog, value)), "")


def _tables(lines: Sequence[str]) -> Iterator[str]:
    """`nvidia-smi`, `nvidia-smi -L`, `-q` and `-q -x`, `torch.utils.collect_env`, torch's own properties."""
    for pattern in (_SMI_ROW, _SMI_LIST, _SMI_QUERY, _TORCH):
        names = [match["name"].strip() for line in lines if (match := pattern.match(line) or _in_text(pattern, line))]
        if names:
            yield from names
            return


def _in_text(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    return pattern.search(line) if pattern == _TORCH else None


def _messages(lines: Sequence[str]) -> Iterator[str]:
    """The warnings of PyTorch that name a GPU; one GPU may be warned about many times."""
    seen: dict[str, None] = {}
    for line in lines:
        before, mark, after = line.partition(_INCOMPATIBLE)
        if mark:
            name = before.rpartition(": ")[2].strip()
            number = re.match(r"\d{2,3}", after)
            known = any(sign.isdigit() for sign in name) or number is None
            seen.setdefault(name if known else f"sm_{number[0]}" if number else "")
        elif found := _FOUND_GPU.search(line):
            seen.setdefault(found["name"])
    yield from seen


def _branded(lines: Sequence[str]) -> Iterator[str]:
    """Lines or cells that are nothing but a name: `nvidia-smi --query-gpu=name,... --format=csv`."""
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        names = [cell.strip("'") for cell in cells if _BRANDED.fullmatch(cell)]
        if names and all(len(cell.split()) < 9 for cell in cells):
            yield names[0]


def _known(catalog: Catalog, name: str, notes: list[str]) -> str:
    """The name if it is one; a name that nvidia-smi cut short without the word that was cut. Else a note."""
    short = name.removesuffix("...").strip()
    try:
        catalog.find_gpu(short)
    except TorchtailorError as error:
        words = short.split()
        if short != name and len(words) > 2 and _is_gpu(catalog, " ".join(words[:-1])):
            return " ".join(words[:-1])
        if (" " not in short or "NVIDIA" in short) and len(notes) < 4:
            _note(notes, f"{error.message} {error.hint}".strip())
        return ""
    return short


def _note(notes: list[str], sentence: str) -> None:
    if sentence not in notes:
        notes.append(sentence)


def _is_gpu(catalog: Catalog, name: str) -> bool:
    try:
        catalog.find_gpu(name)
    except TorchtailorError:
        return False
    return True


def _capability(catalog: Catalog, name: str) -> str:
    """What a name stands for without a doubt; empty otherwise."""
    try:
        match = catalog.find_gpu(name)
    except TorchtailorError:
        return ""
    return "" if match.doubt else str(match.gpu.capability)


def _controllers(catalog: Catalog, lines: Sequence[str], notes: list[str]) -> list[str]:
    """Graphics of `lspci`, `lshw -C display` and `inxi -G`; those of other vendors where there are no others."""
    devices = [
        _REVISION.sub("", match["device"]).replace('"', "")
        for line in lines
        if (match := _CONTROLLER.search(line) or _HARDWARE.match(line))
    ]
    own = [device for device in devices if "NVIDIA" in device or "10de:" in device or _BRACKETS.match(device)]
    names = [name for one in own if (name := _device_name(catalog, one, notes))]
    if names or own or not devices:
        return names
    return [next((device for device in devices if _other_vendor(catalog, device)), "none")]


def _device_name(catalog: Catalog, device: str, notes: list[str]) -> str:
    """The product of a device, as people call it, if that says as much as the line does."""
    number = _NUMBER_ONLY.search(device)
    line = f"10de:{number[1]}" if number else device
    capability = _capability(catalog, line)
    candidates: list[str] = []
    if brackets := _BRACKETS.search(device):
        candidates = [brackets[2], brackets[0]]
    if number and (known := pci_gpu(number[1])):
        candidates = [known.name]
    best = next(
        (candidate for candidate in candidates if capability and _capability(catalog, candidate) == capability), None
    )
    return best or _known(catalog, line, notes)


def _other_vendor(catalog: Catalog, name: str) -> bool:
    """Whether it is known as another vendor's accelerator, and no mere display adapter or a CPU."""
    try:
        catalog.find_gpu(name)
    except TorchtailorError as error:
        if "not an NVIDIA GPU" not in error.message or "(display adapter)" in error.message:
            return False
        return not re.search(r"(?i)ryzen|epyc|xeon|core\(tm\)|\bcpu\b|processor|vendor|genuineintel|authenticamd", name)
    return False


def _longest(catalog: Catalog, text: str) -> str:
    """The most words from the beginning that are a GPU's name; empty where none are."""
    words = re.findall(r"[\w+()-]+", text.partition(",")[0])[:_MOST_WORDS]
    for count in range(len(words)):
        name = " ".join(words[: len(words) - count])
        telling = any(sign.isdigit() for sign in name) or re.search(r"(?i)titan|jetson|spark", name)
        if telling and _is_gpu(catalog, name):
            return name
    return ""
