"""What is kept for which target."""

from __future__ import annotations

import pickle

import pytest

from tests.unit.surgery.checks import policy
from torchtailor.catalog.gpus import CodeKind, CodeTarget
from torchtailor.catalog.makers import maker_of
from torchtailor.code.gpucode.fatbin import Compression, EntryFlag, Image, ImageKind, Part
from torchtailor.tailoring.choices import cut_for

KINDS = {CodeKind.CUBIN: ImageKind.CUBIN, CodeKind.PTX: ImageKind.PTX, CodeKind.LTOIR: ImageKind.LTOIR}
SUFFIXES = {"": 0, "a": int(EntryFlag.ARCH_SPECIFIC), "f": int(EntryFlag.FAMILY_SPECIFIC)}


def images(names: str) -> tuple[Image, ...]:
    found = []
    for offset, name in enumerate(names.split()):
        code = CodeTarget.parse(name)
        kind = KINDS[code.kind]
        flags = SUFFIXES[code.suffix.value]
        number = code.capability.number
        found.append(Image(kind, int(kind), code, offset, 64, 8, 0, 8, Compression.NONE, flags, number, ""))
    return tuple(found)


def kept(targets: str, names: str, kernels: dict[str, set[str] | None] | None = None, **options: bool) -> str:
    def of(image: Image) -> frozenset[str] | None:
        found = (kernels or {}).get(image.label, {"k"})
        return None if found is None else frozenset(found)

    return " ".join(image.label for image in policy(targets, **options).keep_images(images(names), of))


ALL = "sm_70 sm_75 sm_80 sm_86 sm_89 sm_90 sm_90a sm_100 sm_100a sm_120 compute_120"


@pytest.mark.parametrize(
    ("targets", "names", "expected"),
    [
        ("9.0", ALL, "sm_90a"),
        ("9.0", "sm_80 sm_90 compute_90", "sm_90"),
        ("8.9", "sm_80 sm_86 sm_90", "sm_86"),
        ("8.9", "sm_80 sm_86 sm_89 sm_89", "sm_89 sm_89"),
        ("8.6,12.0", ALL, "sm_86 sm_120"),
        ("12.1", "sm_120 sm_120a compute_90", "sm_120"),
        ("12.1", "sm_120 sm_120f sm_121a", "sm_121a"),
        ("12.1", "sm_120a compute_90", "compute_90"),
        ("9.0", "sm_80 compute_50 compute_80 compute_120", "compute_80"),
        ("9.0", "sm_100a sm_120a", ""),
        ("9.0", "lto_50 lto_90 lto_100 sm_90", "lto_50 lto_90 sm_90"),
        ("8.7", "sm_80 sm_86 sm_87", "sm_87"),
        ("8.7", "sm_80 compute_80", "sm_80 compute_80"),  # for JetPack 7.2, and for JetPack 6
        ("8.7", "sm_80 sm_86 compute_80", "sm_86 compute_80"),
        ("8.7", "sm_80", "sm_80"),
        ("11.0", "sm_80 compute_80", "compute_80"),  # other Tegra parts take no desktop cubins
    ],
)
def test_plain_code(targets: str, names: str, expected: str) -> None:
    assert kept(targets, names) == expected


@pytest.mark.parametrize(
    ("targets", "names", "expected"),
    [
        ("8.9", ALL, "sm_80 sm_86 sm_89"),
        ("8.0", ALL, "sm_80"),
        ("9.0", ALL, "sm_90 sm_90a"),
        ("12.1", "sm_100 sm_120 sm_120a sm_120f sm_121 compute_120", "sm_120 sm_120f sm_121"),
        ("9.0", "sm_80 compute_70 compute_80", "compute_80"),
        ("8.7", "sm_80 sm_86 sm_87", "sm_80 sm_86 sm_87"),
        ("8.7", "sm_80 sm_86 sm_90 compute_80", "sm_80 sm_86 compute_80"),
    ],
)
def test_nvidia_libraries_keep_every_minor(targets: str, names: str, expected: str) -> None:
    assert kept(targets, names, keep_all_minors=True) == expected


def test_the_options_of_every_command_count_both_drivers_of_a_tegra_part() -> None:
    chosen = cut_for(["8.7"], environment={}).policy
    found = images("sm_80 compute_80")
    assert chosen.keep_images(found, lambda _: frozenset("k")) == found
    own = images("sm_80 sm_86 sm_87")
    assert chosen.for_library("libcublas.so.12").keep_images(own, lambda _: frozenset("k")) == own


def test_forward_path() -> None:
    assert kept("9.0", ALL, keep_ptx=True) == "sm_90a compute_120"
    assert kept("9.0", "sm_90 compute_80 compute_90", keep_ptx=True) == "sm_90 compute_90"
    assert kept("9.0", "sm_90 compute_90a", keep_ptx=True) == "sm_90"  # no way forward: only for one GPU


def test_link_time_code_can_be_dropped() -> None:
    assert kept("9.0", "lto_50 sm_90", keep_lto=False) == "sm_90"
    assert not policy("9.0", keep_lto=False).usable(images("lto_50"))


def test_a_lesser_image_stays_for_the_kernels_only_it_has() -> None:
    names = "sm_80 sm_86"
    assert kept("8.6", names, {"sm_80": {"a"}, "sm_86": {"a", "b"}}) == "sm_86"
    assert kept("8.6", names, {"sm_80": {"a", "c"}, "sm_86": {"a", "b"}}) == "sm_80 sm_86"
    assert kept("8.6", names, {"sm_80": None, "sm_86": {"a"}}) == "sm_80 sm_86"  # cannot be read: who knows
    assert kept("8.9", "sm_80 sm_86 sm_89", {"sm_80": {"c"}, "sm_86": {"c"}, "sm_89": {"a"}}) == "sm_86 sm_89"


def test_what_one_target_runs_does_not_make_up_for_another() -> None:
    kernels: dict[str, set[str] | None] = {"sm_80": {"a"}, "sm_120": {"a", "b"}, "sm_120a": {"b"}}
    assert kept("8.6,12.0", "sm_80 sm_120 sm_120a", kernels) == "sm_80 sm_120 sm_120a"
    assert kept("12.0", "sm_80 sm_120 sm_120a", {**kernels, "sm_120": {"b"}}) == "sm_120a"
    assert kept("8.6,12.0", "sm_80 sm_120 sm_120a", {**kernels, "sm_120a": None}) == "sm_80 sm_120 sm_120a"


def test_unknown_kinds_stay() -> None:
    unknown = Image(ImageKind.UNKNOWN, 77, None, 0, 64, 8, 0, 8, Compression.NONE, 0, 90, "")
    plain = policy("9.0")
    assert plain.keep_images((unknown,), lambda _: None) == (unknown,)
    assert plain.allows(unknown)


def test_what_may_be_left() -> None:
    plain = policy("9.0")
    for name, allowed in (("sm_90a", True), ("compute_80", True), ("sm_80", False), ("compute_120", False)):
        (image,) = images(name)
        assert plain.allows(image) is allowed
    assert policy("9.0", keep_ptx=True).allows(images("compute_120")[0])


def concatenated(names: str) -> Image:
    """Several images compressed as one, as nvcc --concat does."""
    parts = tuple(Part(i.kind, i.kind_number, i.target, 0, 8, i.flags, i.sm) for i in images(names))
    kind = ImageKind.CONCATENATED
    return Image(kind, int(kind), None, 99, 64, 8, 8, 16, Compression.ZSTD, 0, 0, "", parts)


def test_concatenated_images_stay_whole_or_go() -> None:
    plain = policy("9.0")
    both, foreign = concatenated("sm_80 sm_90"), concatenated("sm_80 sm_120")
    assert plain.keep_images((both, foreign), lambda _: None) == (both,)
    assert plain.allows(both)
    assert not plain.allows(foreign)
    assert not plain.usable([foreign])
    ptx = concatenated("sm_80 compute_120")
    assert policy("9.0", keep_ptx=True).keep_images((ptx,), lambda _: None) == (ptx,)
    assert policy("9.0", keep_ptx=True).allows(ptx)
    lesser = concatenated("sm_80 sm_120")
    (best,) = images("sm_86")
    assert policy("8.6").keep_images((lesser, best), lambda _: None) == (lesser, best)  # its kernels cannot be read


def test_a_policy_travels_to_other_processes() -> None:
    again = pickle.loads(pickle.dumps(policy("9.0", keep_ptx=True)))
    assert again.keep_images(images(ALL), lambda _: frozenset()) == policy("9.0", keep_ptx=True).keep_images(
        images(ALL), lambda _: frozenset()
    )


@pytest.mark.parametrize("name", ["libcublasLt.so.12", "libcudnn_ops.so.9", "libnccl.so.2", "libcufft.so.11"])
def test_nvidias_libraries_are_known(name: str) -> None:
    maker = maker_of(name)
    assert maker is not None
    assert maker.name == "NVIDIA"
    assert maker.licensed_openly(name) is name.startswith("libnccl")


def test_other_libraries_are_not() -> None:
    for name in ("libtorch_cuda.so", "libc10_cuda.so", "flash_attn_2_cuda.so", "libcupy.so"):
        assert maker_of(name) is None
    assert maker_of("renamed.so", "libcublas.so.12") is not None
