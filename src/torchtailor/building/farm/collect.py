"""What a client collects is compared with its plan: nobody's word is taken for it, neither the store's nor a worker's.

Wheels that are not cut have the hashes that the index listed, cut ones are of those that the plan cuts, and all else in
a wheelhouse (pages, metadata files) is made again of the wheels and must be the same. What is inside of a cut wheel is
known to the worker that cut it, and to `verify`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.version import Version

from torchtailor.building.farm.records import JobRecord, digest_of
from torchtailor.building.graph.graph import Job
from torchtailor.building.wheel_jobs import PackedWheel, PackVariant
from torchtailor.core.errors import BadInputError
from torchtailor.fetch.metadata import read_local
from torchtailor.trees.index.pages import METADATA_SUFFIX, index_pages, indexed
from torchtailor.trees.wheels.name import WheelName
from torchtailor.wheelhouse.entry import WheelStep
from torchtailor.wheelhouse.wheelhouse import MANIFEST_NAME, SIMPLE, WHEELS, Manifest, ManifestWheel, read_manifest


def check_collected(job: Job, record: JobRecord, folder: Path, listed: Mapping[str, str]) -> str:
    """What is wrong with the wheelhouse in a folder, which has the files of its record; empty where nothing is.

    `listed` are the SHA-256 that indexes gave, by the keys of fetched wheels.
    """
    try:
        manifest = read_manifest(folder)
        problems = [*_files(record, manifest, folder)]
        if isinstance(job, PackVariant):
            problems += _planned(job, record, manifest, listed)
    except BadInputError as error:
        return error.message.rstrip(".")
    return problems[0] if problems else ""


def _files(record: JobRecord, manifest: Manifest, folder: Path) -> Iterator[str]:
    """The wheels are those of the manifest, and everything else is made of them."""
    found = {file.path: file.sha256 for file in record.files}
    expected = {MANIFEST_NAME: found.get(MANIFEST_NAME, "")}
    rows = []
    for wheel in manifest.wheels:
        path = folder / WHEELS / wheel.output.filename
        if found.get(f"{WHEELS}/{path.name}") != wheel.output.sha256:
            yield f"{path.name} is not the file that its manifest lists"
            return
        expected[f"{WHEELS}/{path.name}"] = wheel.output.sha256
        metadata = read_local(path)
        rows.append(indexed(path, wheel.output.sha256, metadata, f"../../{WHEELS}/"))
        expected[f"{WHEELS}/{path.name}{METADATA_SUFFIX}"] = hashlib.sha256(metadata).hexdigest()
    for page, content in index_pages(rows).items():
        expected[f"{SIMPLE}/{page}"] = hashlib.sha256(content).hexdigest()
    for name in sorted({*found} ^ {*expected}):
        yield f"{name} {'does not belong to it' if name in found else 'is missing'}"
    for name in sorted(expected):
        if found.get(name) != expected[name]:
            yield f"{name} does not say what its wheels are"


def _planned(job: PackVariant, record: JobRecord, manifest: Manifest, listed: Mapping[str, str]) -> Iterator[str]:
    """The manifest says of the variant and of every wheel what the plan says."""
    about, target = job.description, manifest.target
    if (about.variant, about.gpu, about.python, about.arch, about.build) != (
        manifest.variant, target.gpu, target.python, target.arch, manifest.pytorch.build,
    ):  # fmt: skip
        yield f"it is of {manifest.variant}"
    inputs = Counter(wheel.input.filename if wheel.input else "" for wheel in manifest.wheels)
    if inputs != Counter(wheel.filename for wheel in job.wheels):
        yield "its wheels are not those of the plan"
        return
    planned = {wheel.filename: wheel for wheel in job.wheels}
    for wheel in manifest.wheels:
        assert wheel.input
        source = planned[wheel.input.filename]
        if (sha256 := listed.get(source.source)) and wheel.input.sha256 != sha256:
            yield f"{wheel.input.filename} is not the file that its index lists"
        yield from _wheel(source, wheel, record)
    names = [WheelName.parse(Path(wheel.output.filename)) for wheel in manifest.wheels]
    versions = {name.project: str(Version(name.version)) for name in names}
    asked = [(name, versions.get(name.partition("[")[0])) for name in about.requested]
    if manifest.requirements != [f"{name}=={version}" for name, version in asked if version]:
        yield "its requirements are not those of the plan"


def _wheel(planned: PackedWheel, wheel: ManifestWheel, record: JobRecord) -> Iterator[str]:
    """A wheel is made of what the job had, and as the plan treats it."""
    assert wheel.input
    stock, made = wheel.input, wheel.output
    if record.inputs.get(planned.source) != digest_of([(stock.filename, stock.sha256)]):
        yield f"{stock.filename} is not what it was made of"
    if wheel.step is WheelStep.UNCHANGED:
        if (made.filename, made.sha256) != (stock.filename, stock.sha256):
            yield f"{made.filename} is not the official wheel"
    elif wheel.step is not WheelStep.CUT or planned.cut is None:
        yield f"{made.filename} should not have been changed"
    elif WheelName.parse(Path(made.filename)).project != WheelName.parse(Path(stock.filename)).project:
        yield f"{made.filename} is not of {stock.filename}"
