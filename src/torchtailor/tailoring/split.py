"""Split wheels: one without GPU code for all GPUs, and a wheel of packs for each GPU.

    torch-2.15.0+cu132.host-cp312-cp312-manylinux_2_28_x86_64.whl            libraries and the hook
    torch_gpu_sm90-2.15.0+cu132.p1a2b3c4-py3-none-manylinux_2_28_x86_64.whl  the packs for one GPU

`torch[sm90]` requires the second. Its version names the code that was moved, of all GPUs: wheels with the same code,
such as those for several Pythons, require the same packs. Packs of several GPUs may be installed side by side.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from torchtailor.catalog import Capability, CodeTarget
from torchtailor.core.disk import hash_file
from torchtailor.core.documents import plain
from torchtailor.core.version import __version__
from torchtailor.surgery.cut import Cut
from torchtailor.surgery.result import LibraryResult
from torchtailor.tailoring.manifest import SCHEMA
from torchtailor.tailoring.packs import folder_name, pack_folder
from torchtailor.tailoring.places import check_wheel_place
from torchtailor.tailoring.result import PackWheel
from torchtailor.trees.wheels.distribution import MANIFEST, WheelDistribution
from torchtailor.trees.wheels.metadata import with_lines
from torchtailor.trees.wheels.name import WheelName, labelled_version
from torchtailor.trees.wheels.record import FileHash
from torchtailor.trees.wheels.write import new_wheel

CHOICE = "gpu"  # the extra whose package a wheel variant chooses
SPLIT_NOTE = "split.txt"  # beside the hook: what to install, and for which libraries
_LICENCE_FILE = re.compile(r"licenses/|[^/]*(?:licen[cs]e|notice|copying|copyright|eula)[^/]*$", re.IGNORECASE)
_COPIED_FIELDS = ("metadata-version", "license-expression", "license", "license-file")
_DIGITS = 7


def pack_distribution(distribution: str, target: str) -> str:
    """The name of the distribution with the packs for a GPU: `torch-gpu-sm90`."""
    return f"{canonicalize_name(distribution)}-gpu-{target}"


def choice_distribution(distribution: str) -> str:
    """The name of the distribution whose wheel variants each require the packs for their GPU."""
    return f"{canonicalize_name(distribution)}-{CHOICE}"


def pack_version(distribution: WheelDistribution, libraries: Iterable[LibraryResult], earlier: str = "") -> str:
    """The version of the packs: that of the wheel, with a hash of what was moved."""
    rows = sorted(f"{library.path} {library.moved_digest}\n" for library in libraries if library.moved_digest)
    digest = hashlib.sha256("".join(rows).encode()).hexdigest()[:_DIGITS]
    stock = distribution.metadata.version
    return labelled_version(stock, f"p{digest}", stock_local=distribution.stock_local, earlier_label=earlier)


def served_gpus(options: Cut, libraries: Iterable[LibraryResult]) -> list[Capability]:
    """The known GPUs that can use some of what was moved."""
    labels = {label for library in libraries if library.moved_digest for label in library.moved}
    codes = [code for label in sorted(labels) if (code := _code(label))]
    return sorted(gpu for gpu in options.policy.rules.gpus if any(options.policy.fits(gpu, code) for code in codes))


def _code(label: str) -> CodeTarget | None:
    try:
        return CodeTarget.parse(label)
    except ValueError:
        return None


def host_metadata(
    metadata: bytes, distribution: str, version: str, gpus: Iterable[Capability], also: Sequence[str]
) -> bytes:
    """METADATA with an extra for each GPU that requires its packs, and those of the distributions in `also`."""
    lines: list[str] = []
    for extra, required in [
        *((gpu.sm, pack_distribution(distribution, gpu.sm)) for gpu in gpus),
        (CHOICE, choice_distribution(distribution)),
    ]:
        lines.append(f"Provides-Extra: {extra}")
        lines.append(f'Requires-Dist: {required}=={version}; extra == "{extra}"')
        lines += [f'Requires-Dist: {name}[{extra}]; extra == "{extra}"' for name in also]
    return with_lines(metadata, lines)


def split_note(distribution: str, version: str, libraries: Iterable[LibraryResult]) -> bytes:
    """What the hook reads where no pack is found: the distribution and its version, and the libraries it is for."""
    names = sorted(Path(library.path).name for library in libraries if library.moved_digest)
    return "".join(f"{line}\n" for line in (canonicalize_name(distribution), version, *names)).encode()


def write_pack_wheel(
    stock: WheelDistribution,
    folder: Path,
    version: str,
    options: Cut,
    packs: Mapping[str, Path],
    libraries: Sequence[LibraryResult],
) -> PackWheel:
    """Write the wheel of packs for one GPU; `packs` are files by the path of their library.

    Nothing in it depends on the Python of the stock wheel.
    """
    target = options.targets.label
    name = pack_distribution(stock.metadata.name, target)
    escaped = folder_name(name)
    platform = stock.name.platform
    path = folder / str(WheelName(escaped, version, "", "py3", "none", platform))
    dist_info = f"{escaped}-{version}.dist-info"
    written: dict[str, bytes] = {
        "METADATA": _metadata(stock, name, version, target),
        "WHEEL": _wheel_file(platform),
        MANIFEST: _manifest(stock, options, path.name, version, libraries),
    }
    check_wheel_place(path)
    with new_wheel(path, threads=options.workers) as writer:
        for library in sorted(packs):
            pack = packs[library]
            sha256 = FileHash.from_hex(hash_file(pack))
            writer.add_file(f"{pack_folder(escaped)}/{pack.name}", pack, sha256=sha256)
        for member in stock.payload():
            own, _, rest = member.name.partition("/")
            if own == stock.dist_info and not member.is_dir and _LICENCE_FILE.match(rest):
                writer.copy(stock.archive, member, f"{dist_info}/{rest}", stock.hash_of(member))
        for file, data in written.items():
            writer.add_bytes(f"{dist_info}/{file}", data)
        writer.add_record(f"{dist_info}/RECORD")
    return PackWheel(path, target, path.stat().st_size, hash_file(path))


def _metadata(stock: WheelDistribution, name: str, version: str, target: str) -> bytes:
    """METADATA with the licence of the stock wheel, whose code it is."""
    fields = list(_header_fields(stock.archive.read(f"{stock.dist_info}/METADATA").decode("utf-8", "replace")))
    kept = [
        text
        for field, text in fields
        if field in _COPIED_FIELDS or (field == "classifier" and text.partition(":")[2].strip().startswith("License"))
    ]
    first = [text for text in kept if text.lower().startswith("metadata-version")] or ["Metadata-Version: 2.1"]
    rest = [text for text in kept if not text.lower().startswith("metadata-version")]
    about = f"Summary: GPU code of {stock.metadata.name} {stock.metadata.version} for {target}"
    return "\n".join([*first, f"Name: {name}", f"Version: {version}", about, *rest, "", ""]).encode()


def _header_fields(text: str) -> Iterator[tuple[str, str]]:
    """The fields of METADATA in their order, each with its continuation lines."""
    head = re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]
    for field in re.findall(r"^[^\s:]+:[^\n]*(?:\n[ \t][^\n]*)*", head.replace("\r\n", "\n"), re.MULTILINE):
        yield field.partition(":")[0].lower(), field


def _wheel_file(platform: str) -> bytes:
    tags = "".join(f"Tag: py3-none-{one}\n" for one in platform.split("."))
    return f"Wheel-Version: 1.0\nGenerator: torchtailor {__version__}\nRoot-Is-Purelib: false\n{tags}".encode()


def _manifest(
    stock: WheelDistribution, options: Cut, filename: str, version: str, libraries: Sequence[LibraryResult]
) -> bytes:
    """The manifest of a wheel of packs: which libraries it is for, and what it has for them."""
    settings = plain(options.document)
    document = {
        "schema": SCHEMA,
        "tool": {"name": "torchtailor", "version": __version__},
        **settings,
        "target": settings["target"] | {"label": options.targets.label},
        "input": {"kind": "wheel", "name": stock.metadata.name, "version": stock.metadata.version},
        "output": {"kind": "packs", "name": filename, "version": version},
        "libraries": [
            {
                "path": library.path,
                "status": library.status.value,
                "pack": {"name": library.pack, "size": library.pack_size, "sha256": library.pack_sha256},
                "packed": plain(library.packed),
            }
            for library in sorted(libraries, key=lambda one: one.path)
            if library.moved_digest
        ],
    }
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()
