"""What `--json` prints: the type of every document, from which docs/json.md and its tests are made.

A document is described by the dataclass that is printed, or, where a result is written as a mapping, by a Struct here.
`Open` is an object whose keys are data, or whose further keys are described on the command's own page.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

Open = dict[str, Any]
Bytes = Annotated[int, Meta(description="bytes")]
Seconds = Annotated[float, Meta(description="seconds")]
Time = Annotated[str, Meta(description="ISO 8601, with the zone")]
Date = Annotated[str, Meta(description="ISO 8601")]
Sha256 = Annotated[str, Meta(description="hexadecimal")]
PlannedSha256 = Annotated[str | None, Meta(description="hexadecimal; null in a dry run")]


class InspectDocument(Struct):
    gpus: Annotated[list[str], Meta(description="the GPUs of --gpu")]
    inputs: Annotated[list[Open], Meta(description="per path its libraries: [inspect.md](inspect.md)")]
    droppable: Annotated[list[Open], Meta(description="what each rule of `tailor --drop` would leave out")]
    totals: Open


class TargetDocument(Struct):
    gpus: list[str]
    archs: list[str]
    keep_ptx: bool
    label: str


class RecompressionPolicy(Struct):
    level: int
    driver: str | None


class PolicyDocument(Struct):
    strip: bool | None
    nvidia: bool
    recompress: RecompressionPolicy | None
    drop: Annotated[list[str], Meta(description="rules of --drop")] | UnsetType = UNSET
    lto: Annotated[bool, Meta(description="false: LTO-IR was removed")] | UnsetType = UNSET
    relr: Annotated[bool, Meta(description="relocations were packed, for glibc 2.36")] | UnsetType = UNSET
    split: Annotated[bool, Meta(description="true: all code went to packs")] | UnsetType = UNSET
    workload: Annotated[Open, Meta(description="trace, margin, pack")] | UnsetType = UNSET


class TailoredLibrary(Struct):
    """A library; what was not read has a reason, what was changed has hashes."""

    path: str
    status: str
    size_before: Bytes
    size_after: Bytes
    reason: str | UnsetType = UNSET
    gpu_before: Bytes | UnsetType = UNSET
    gpu_after: Bytes | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
    sha256_before: PlannedSha256 | UnsetType = UNSET
    sha256_after: PlannedSha256 | UnsetType = UNSET
    kept: Annotated[Open, Meta(description="by architecture: images, stored bytes")] | UnsetType = UNSET
    dropped: Annotated[Open, Meta(description="by architecture: images, stored bytes")] | UnsetType = UNSET
    stripped: list[str] | UnsetType = UNSET
    instructions_sha256: Annotated[str | None, Meta(description="of its machine code")] | UnsetType = UNSET
    moved: Annotated[Open, Meta(description="to a pack, by architecture: images, stored bytes")] | UnsetType = UNSET
    packed: Annotated[Open, Meta(description="of what a split moved, for the targets")] | UnsetType = UNSET
    pack: Annotated[Open, Meta(description="name, size, sha256")] | UnsetType = UNSET
    zeroed: Annotated[int, Meta(description="bytes of removed code that stay as zeros")] | UnsetType = UNSET
    relr: Annotated[int, Meta(description="bytes saved by packed relocations")] | UnsetType = UNSET
    recompressed: Open | UnsetType = UNSET
    not_packed: Annotated[str, Meta(description="why --relr packed nothing of it")] | UnsetType = UNSET
    only_ptx: (
        Annotated[list[str], Meta(description="the GPUs that have no machine code in it and use its PTX")] | UnsetType
    ) = UNSET
    could_save: Annotated[int, Meta(description="bytes that --nvidia would save")] | UnsetType = UNSET
    could_strip: Annotated[int, Meta(description="bytes that --strip would save")] | UnsetType = UNSET


class TailoredInput(Struct):
    """One path, or one site-packages folder of an environment."""

    kind: str
    source: str
    output: str | None
    size_before: Bytes
    size_after: Annotated[int | None, Meta(description="bytes; null for a wheel in a dry run that would change it")]
    sha256_before: Annotated[str | None, Meta(description="hexadecimal; null for folders and environments")]
    sha256_after: Annotated[str | None, Meta(description="hexadecimal; null also in a dry run that would change it")]
    removed_size: Annotated[int, Meta(description="bytes that --keep-removed keeps")]
    unopened: Annotated[int, Meta(description="bytes of large files that the workload never opened")]
    could_save: Bytes
    could_leave_out: Bytes
    could_strip: Bytes
    could_drop_lto: Bytes
    dropped_files: Annotated[list[Open], Meta(description="that were left out: path, rule, size, code")]
    useless_for_target: bool
    notes: list[str]
    libraries: list[TailoredLibrary]
    pack_wheels: Annotated[list[Open], Meta(description="of a split: path, target, size, sha256")] | UnsetType = UNSET


class FailedInput(Struct):
    source: str
    error: str
    hint: str


class TailorDocument(Struct):
    dry_run: bool
    seconds: Seconds
    target: TargetDocument
    policy: PolicyDocument
    inputs: list[TailoredInput]
    failures: list[FailedInput]


class ImageLayer(Struct):
    """One layer; sizes after are null where a dry run cannot know them."""

    number: Annotated[int, Meta(description="from 1")]
    created_by: Annotated[str, Meta(description="of the image's history")]
    compression: str
    files: int
    digest_before: str
    digest_after: str | None
    size_before: Annotated[int, Meta(description="bytes, packed")]
    size_after: int | None
    unpacked_before: Bytes
    unpacked_after: Bytes
    shadowed: Annotated[int, Meta(description="bytes that a later layer replaces or deletes")]
    squashed: Annotated[int, Meta(description="of these, bytes that --squash-shadowed left out")]
    dropped: Annotated[int, Meta(description="bytes that rules left out")]


class ImageLibraryDocument(TailoredLibrary, kw_only=True):
    """A library of an image."""

    layer: int
    shadowed: Annotated[bool, Meta(description="a later layer replaces or deletes it")] | UnsetType = UNSET


class PlatformImage(Struct):
    """The image of one platform."""

    platform: str
    digest_before: str
    digest_after: str | None
    size_before: Annotated[int, Meta(description="bytes of all layers, packed")]
    size_after: int | None
    unpacked_before: Bytes
    unpacked_after: Bytes
    shadowed: Annotated[int, Meta(description="bytes that a later layer replaces or deletes")]
    doubled: Annotated[int, Meta(description="bytes that are in more than one layer")]
    could_save: Annotated[int, Meta(description="bytes that --nvidia would save")]
    notes: list[str]
    layers: list[ImageLayer]
    libraries: list[ImageLibraryDocument]
    doubled_files: Annotated[list[Open], Meta(description="the largest: path, size, layers")]
    dropped_files: Annotated[list[Open], Meta(description="that were left out: path, rule, size, code")]
    droppable: Annotated[list[Open], Meta(description="what each other rule would leave out: rule, files, size")]


class ImageDocument(Struct):
    dry_run: bool
    seconds: Seconds
    target: TargetDocument
    policy: PolicyDocument
    squash_shadowed: bool
    compression: Annotated[str | None, Meta(description="of --compress")]
    source: str
    destination: str
    digest: Annotated[str | None, Meta(description="of what the destination's name means now")]
    notes: list[str]
    images: list[PlatformImage]


class VerifyDocument(Struct):
    format: int
    target: str
    passed: bool
    level_not_reached: Annotated[str, Meta(description="why the level asked for could not be checked, or empty")]
    counts: dict[str, int]
    facts: Annotated[Open, Meta(description="see [verify.md](verify.md)")]
    checks: Annotated[list[Open], Meta(description="level, name, outcome, reason; details and seconds where known")]


class WheelhouseDocument(Struct):
    """A folder that pip and uv install from."""

    variant: str
    path: str
    torch: str
    index_url: str
    pip: Annotated[str, Meta(description="the command that installs it")]
    uv: Annotated[str, Meta(description="the command that installs it")]
    input_bytes: int
    output_bytes: int
    wheels: int
    wheels_cut: int


class UnavailableDocument(Struct):
    """What was selected and cannot be built."""

    variant: Annotated[str, Meta(description="a variant of a glob, or an alternative of its braces that matches none")]
    reason: str


class WheelBuildDocument(Struct):
    wheelhouses: list[WheelhouseDocument]
    variants_index: str | None
    downloaded: Bytes
    seconds: Seconds
    unavailable: list[UnavailableDocument]


class PlannedWheelDocument(Struct):
    name: str
    version: str
    filename: str
    origin: str = msgspec.field(name="from")
    size: Bytes
    download: Bytes
    treatment: str
    required_by: list[str]


class PlannedVariantDocument(Struct):
    variant: str
    pytorch: str
    build: str
    python: str
    arch: str
    gpu: str | None
    gives: str
    other_methods: list[str]
    notes: list[str]
    inputs: list[PlannedWheelDocument]
    input_bytes: int
    output_bytes_expected: int


class WheelPlanDocument(Struct):
    out: str
    options: Open
    variants: list[PlannedVariantDocument]
    download: Bytes
    disk: Bytes
    disk_free: Bytes
    memory: Bytes
    seconds: Seconds
    unavailable: list[UnavailableDocument]


class InstallPlanDocument(WheelPlanDocument):
    environment: str


class InstallDocument(Struct):
    wheelhouse: WheelhouseDocument
    installed: Open


class SourcePlanDocument(Struct):
    plan: Open
    builds: Annotated[
        list[Open],
        Meta(description="variant, source, work, configuration, reasons, preflight, blocking, bundle, warnings"),
    ]
    unavailable: list[UnavailableDocument]


class SourceBuildDocument(Struct):
    builds: Annotated[list[Open], Meta(description="variant, wheel, wheelhouses, attempts, log, peak_memory, bundle")]
    seconds: Seconds
    unavailable: list[UnavailableDocument]


class NixPlanDocument(Struct):
    jobs: Annotated[list[Open], Meta(description="name, recipe, link, command, cores")]
    unavailable: list[UnavailableDocument]


class NixBuildDocument(Struct):
    outputs: Annotated[list[Open], Meta(description="name, link, store_path, logs, tool, output_bytes")]
    seconds: Seconds
    unavailable: list[UnavailableDocument]


class FarmJobDocument(Struct):
    """A job of a plan."""

    key: Annotated[str, Meta(description="of its first output in the store")]
    kind: str
    label: str
    needs: Annotated[list[str], Meta(description="keys of the jobs that it waits for")]
    seconds: Annotated[float, Meta(description="expected, on one core")]
    memory: Bytes
    in_store: bool


class ExpectedTimeDocument(Struct):
    workers: int
    seconds: Seconds
    efficiency: Annotated[float, Meta(description="share of the workers' time that is work")]


class FarmPlanDocument(Struct):
    on: str
    store: str
    variants: list[str]
    unavailable: list[UnavailableDocument]
    prove: Annotated[str | None, Meta(description="the level at which --prove verifies each wheelhouse")]
    jobs: list[FarmJobDocument]
    jobs_to_run: int
    download: Annotated[int | None, Meta(description="bytes at most, by the sizes that indexes list; null: not known")]
    core_hours: float
    critical_path_seconds: Annotated[float, Meta(description="of the longest chain of jobs")]
    expected: list[ExpectedTimeDocument]


class FarmFailureDocument(Struct):
    variant: str
    job: str
    error: str
    hint: str
    failure: Annotated[str, Meta(description="the id that `diagnose` has for it")]


class FarmOutcomeDocument(Struct):
    """A job that ran."""

    key: str
    label: str
    worker: str
    seconds: Seconds
    done: bool
    hits: Annotated[int, Meta(description="files that a cache had")]
    misses: int


class RefusedWorkerDocument(Struct):
    worker: str
    reason: str


class FarmBuildDocument(Struct):
    """While it runs, stderr has one JSON object a line for each event."""

    wheelhouses: list[WheelhouseDocument]
    variants_index: str | None
    outputs: Annotated[list[Open], Meta(description="of --via nix: name, link, store_path, logs, tool, output_bytes")]
    failed: list[FarmFailureDocument]
    jobs: list[FarmOutcomeDocument]
    jobs_in_store: Annotated[int, Meta(description="jobs that did not have to run")]
    workers_lost: int
    workers_refused: list[RefusedWorkerDocument]
    downloaded: Bytes
    proven: Annotated[str | None, Meta(description="the level at which --prove has verified the wheelhouses")]
    seconds: Seconds
    unavailable: list[UnavailableDocument]


class WorkerCheckDocument(Struct):
    worker: str
    usable: bool
    why: Annotated[str, Meta(description="why it is not usable")]
    builds: Annotated[list[str], Meta(description="the build methods that it has the tools for")]
    facts: Annotated[Open, Meta(description="host, version, python, glibc, compiler, cores, memory, disk_free, ...")]


class FarmCheckDocument(Struct):
    on: str
    store: str
    objects: Annotated[str, Meta(description="where compiled files are shared; empty: nowhere was named")]
    workers: list[WorkerCheckDocument]


class CiJobDocument(Struct):
    """A job that builds."""

    name: str
    variants: list[str]
    runner: Annotated[list[str], Meta(description="labels")]


class CiProofDocument(Struct):
    """A job that proves on a GPU what another one built."""

    name: str
    of: str
    variants: list[str]
    runner: Annotated[list[str], Meta(description="labels")]


class CiDocument(Struct):
    path: str
    written: bool
    system: str
    jobs: list[CiJobDocument]
    proofs: list[CiProofDocument]
    publish: Annotated[str, Meta(description="the index; empty: none")]
    warnings: Annotated[list[str], Meta(description="what it cannot do by itself")]
    text: Annotated[str, Meta(description="the workflow")]


class PublishDocument(Struct):
    to: str
    dry_run: bool
    targets: list[str]
    uploaded: Annotated[int, Meta(description="files")]
    uploaded_bytes: int
    already_there: Annotated[int, Meta(description="files")]
    left_out: Annotated[list[str], Meta(description="changed NVIDIA wheels")]
    notes: list[str]


class PublishChangeDocument(Struct):
    dry_run: bool
    action: str
    changed: Annotated[list[str], Meta(description="`TARGET/FILE` of every entry of a page that is not as before")]
    removed: Annotated[list[str], Meta(description="stored files that are gone")]
    removed_bytes: int
    copied_bytes: int
    generation: int | None


class GenerationDocument(Struct):
    """A state that the index can go back to."""

    number: int
    time: Time
    action: str
    files: int


class PublishListDocument(Struct):
    to: str
    targets: Annotated[
        dict[str, list[Open]], Meta(description="by target its files, as the index's JSON pages have them")
    ]
    generations: list[GenerationDocument]


class RecipesWriteDocument(Struct):
    trees: Annotated[list[Open], Meta(description="root, release, files with their action, missing")]


class RecipesCheckDocument(Struct):
    passed: bool
    trees: Annotated[list[Open], Meta(description="root, release, recipes, evaluated, errors, warnings, findings")]


class RecipesMigrateDocument(Struct):
    trees: Annotated[
        list[Open], Meta(description="root, release, total, recipes with status, reason, exports, not_carried")
    ]


class RecipesHashDocument(Struct):
    trees: Annotated[list[Open], Meta(description="found, written")]


class RecipesBuildDocument(Struct):
    plan: Annotated[Open, Meta(description="jobs, parallel, elsewhere, cache")]
    results: Annotated[list[Open], Meta(description="name, built, error, copied")]


class RecipesRulesDocument(Struct):
    rules: Annotated[list[dict[str, str]], Meta(description="rule, severity, looks for, fix")]
