"""Recipes from official wheels: which wheels a variant is made of, by name and hash, and their files in a tree."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from importlib.resources import files
from importlib.resources.abc import Traversable

from packaging.utils import canonicalize_name

from torchtailor.catalog.load import Catalog
from torchtailor.catalog.methods import WHEEL
from torchtailor.catalog.variants.matrix import Matrix
from torchtailor.catalog.variants.rules import coverage
from torchtailor.catalog.variants.select import select
from torchtailor.catalog.variants.variant import Variant
from torchtailor.core.errors import NetworkError, NoMatchError, TorchtailorError
from torchtailor.fetch.finder import Finder
from torchtailor.fetch.pages import WheelFile
from torchtailor.fetch.resolve import resolve
from torchtailor.fetch.target import Target
from torchtailor.fetch.torch import choose_torch, closure_requirements
from torchtailor.nix.blueprint import cuda_tag
from torchtailor.nix.nixlibrary import recipe_text
from torchtailor.nix.nixtext import NixCode, nix_value
from torchtailor.nix.pins import Pins
from torchtailor.nix.tree import LIBRARY, stamp

TOOL = "torchtailor"
_INDEXES = "Set another index as pip and uv have it: PIP_INDEX_URL, PIP_FIND_LINKS or UV_INDEX_STRATEGY."
# Pure Python, or of no concern to torch's version: nixpkgs' own, as wheels.nix lists them.
_FROM_NIXPKGS = frozenset(
    {
        *("filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "numpy", "pillow", "setuptools"),
        *("sympy", "typing-extensions"),
    }
)


@dataclass(frozen=True, slots=True)
class WheelPin:
    """A wheel as `fetchPypi` takes it; one that the default index does not have has its URL."""

    filename: str
    hash: str
    url: str = ""

    @property
    def arguments(self) -> Mapping[str, str]:
        """What the fetcher takes; a build tag is joined to the version, as `fetchPypi` joins both to the name."""
        if self.url:
            return {"name": self.filename, "url": self.url, "hash": self.hash}
        pname, *version, python, abi, platform = self.filename.removesuffix(".whl").split("-")
        tags = {"python": python, "abi": abi, "platform": platform}
        return {"pname": pname, "version": "-".join(version), **tags, "hash": self.hash}


class WheelPins:
    """Finds the wheels of variants in the configured indexes; variants that differ only in hardware share them."""

    def __init__(self, catalog: Catalog, finder: Finder | None = None) -> None:
        self._catalog = catalog
        self._finder = finder or Finder.of()
        self._known: dict[tuple[str, str, Target, tuple[str, ...]], tuple[WheelPin, ...] | TorchtailorError] = {}

    def of(self, variant: Variant, companions: Sequence[str] = ()) -> tuple[WheelPin, ...]:
        """Its wheels and those of its companions; raises if the indexes do not have them."""
        target = Target(variant.python, variant.arch)
        key = (str(variant.release.version), variant.build.label, target, tuple(companions))
        if key not in self._known:
            try:
                self._known[key] = self._find(variant, target, companions)
            except (NoMatchError, NetworkError) as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, TorchtailorError):
            raise found
        return found

    def _find(self, variant: Variant, target: Target, companions: Sequence[str]) -> tuple[WheelPin, ...]:
        choice = choose_torch(self._finder, variant, target, self._catalog.wheel_index)
        wanted = closure_requirements(choice, companions)
        closure = resolve(wanted, choice.finder, target, {canonicalize_name("torch"): choice.file})
        return tuple(self._pin(item.file, variant) for item in closure if item.name not in _FROM_NIXPKGS)

    def _pin(self, file: WheelFile, variant: Variant) -> WheelPin:
        if not file.sha256:
            raise NoMatchError(
                f"{file.source.shown} gives no SHA-256 for {file.filename}, which a recipe needs.",
                "Use an index that gives hashes, such as the default one.",
            )
        sri = "sha256-" + base64.b64encode(bytes.fromhex(file.sha256)).decode()
        if not file.version.local:
            return WheelPin(file.filename, sri)
        # A local label is never on the default index: PyTorch's own index of this build has it.
        address = self._catalog.wheel_index.format(label=variant.build.label)
        return WheelPin(file.filename, sri, f"{address}/{file.filename.replace('+', '%2B')}")


def wheel_variants(
    catalog: Catalog, pins: Pins, matrix: Matrix, release: str, globs: Sequence[str], pythons: Sequence[str]
) -> tuple[Variant, ...]:
    """The variants of a release that its official wheels run on, for Pythons that nixpkgs has."""
    found = catalog.release(release)
    offered = pins.newest.pythons
    chosen = []
    for python in pythons or (found.default_python,):
        if python not in offered or python not in found.pythons:
            raise NoMatchError(
                f"There are no wheel recipes of release {found.recipe_name} for Python {python}.",
                f"Choose from {', '.join(item for item in found.pythons if item in offered)}.",
            )
        chosen += list(matrix.variants(found.recipe_name, python))
    return select([item for item in chosen if coverage(catalog, item, WHEEL).available], globs)


def render_wheel(
    pins: Pins, variant: Variant, wheels: Sequence[WheelPin], *, nvidia: bool, companions: Sequence[str] = ()
) -> str:
    """The recipe of one variant from its wheels."""
    gpu = variant.gpu
    target = f"{gpu.sm.upper()} ({gpu.describe()})" if gpu else f"{variant.arch} CPUs"
    official = f"PyTorch {variant.release.version}: the official {variant.build.label} wheels"
    more = " with NVIDIA's libraries" if nvidia else ""
    cut = f", cut{more}" if gpu else ""
    description = f"{official}{cut} for {target}"
    # Without Python, which nixpkgs puts before it, and without the CPU, which does not matter.
    row: dict[str, object] = {
        "pname": f"pytorch-cuda{cuda_tag(variant.build.cuda)}-{gpu.sm}" if gpu else "pytorch-cpu",
        "version": str(variant.release.version),
        "python": variant.python,
        "cpu": variant.isa.name,
    }
    if gpu:
        row |= {"gpuArchSM": str(gpu.capability), "nvidia": nvidia}
    row |= {
        "imports": ("torch", *companions),
        "description": description,
        "officialWheels": [wheel.arguments for wheel in wheels],
    }
    return recipe_text(pins, pins.newest, "wheels", row, f"{description}, Python {variant.python}.")


def render_wheels(
    pins: Pins, variants: Sequence[Variant], wheels: WheelPins, *, nvidia: bool, companions: Sequence[str]
) -> tuple[Mapping[str, str], Mapping[str, tuple[str, ...]]]:
    """The recipes of the variants whose wheels the indexes have, and by the reason the names of the others."""
    texts: dict[str, str] = {}
    missing: dict[str, tuple[str, ...]] = {}
    problem: TorchtailorError | None = None
    for variant in variants:
        try:
            found = wheels.of(variant, companions)
        except (NoMatchError, NetworkError) as error:
            problem = problem or error
            missing[error.message] = (*missing.get(error.message, ()), variant.name)
            continue
        texts[variant.name] = render_wheel(pins, variant, found, nvidia=nvidia, companions=companions)
    if not texts and problem:
        raise type(problem)(problem.message, _INDEXES)
    return texts, missing


def tool_files(pins: Pins) -> Mapping[str, bytes]:
    """The files of the package `torchtailor` in a tree, by their path under `.flox`."""
    version = distribution(TOOL).version
    name = f"{TOOL}-{version}-py3-none-any.whl"
    title = f"torchtailor {version}, which cuts the wheels."
    own = nix_value({"version": version, "src": NixCode(f"./{name}")}) + "\n"
    return {
        f"pkgs/{TOOL}.nix": recipe_text(pins, pins.newest, "tool", {}, title).encode(),
        f"{LIBRARY}/own.nix": stamp(own, title).encode(),
        f"{LIBRARY}/{name}": own_wheel(),
    }


@cache
def own_wheel() -> bytes:
    """This torchtailor as a wheel; the same files give the same bytes."""
    version = distribution(TOOL).version
    info = f"{TOOL}-{version}.dist-info"
    members = dict(sorted(_walk(files(TOOL), TOOL)))
    metadata = distribution(TOOL).metadata
    head = [f"{key}: {metadata[key]}" for key in ("Metadata-Version", "Name", "Version", "Summary", "Requires-Python")]
    requires = [f"Requires-Dist: {item}" for item in distribution(TOOL).requires or () if "extra ==" not in item]
    members[f"{info}/METADATA"] = ("\n".join([*head, *requires]) + "\n").encode()
    members[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: torchtailor\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members[f"{info}/entry_points.txt"] = b"[console_scripts]\ntorchtailor = torchtailor.__main__:start\n"
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in members.items()]
    members[f"{info}/RECORD"] = ("\n".join([*record, f"{info}/RECORD,,"]) + "\n").encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def _walk(folder: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for item in folder.iterdir():
        name = f"{prefix}/{item.name}"
        if item.is_dir():
            found += [] if item.name == "__pycache__" else _walk(item, name)
        elif not item.name.endswith((".pyc", ".pyo")):
            found.append((name, item.read_bytes()))
    return found


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
