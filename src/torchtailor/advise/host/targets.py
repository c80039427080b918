"""Reads which GPUs are meant: `--gpu`, `native`, product names, TORCH_CUDA_ARCH_LIST."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torchtailor.advise.host.detect import detect
from torchtailor.catalog import Capability, Catalog, Suffix, TorchArch
from torchtailor.code.gpucode.targets import NO_GPU, Targets
from torchtailor.core.errors import EnvironmentProblem, ImpossibleError, UsageError

ARCH_LIST_VARIABLE = "TORCH_CUDA_ARCH_LIST"
NATIVE = "native"

_SM_SUFFIXED = re.compile(r"(?:sm|compute)_?(\d{1,2})(\d)([af])", re.IGNORECASE)

NativeGpus = Callable[[], Iterable[Capability]]


def read_targets(
    words: str | Sequence[str],
    catalog: Catalog,
    environment: Mapping[str, str],
    *,
    keep_ptx: bool = False,
    native: NativeGpus | None = None,
) -> Targets:
    """The targets of `--gpu` (several, or with commas), or of TORCH_CUDA_ARCH_LIST where `--gpu` is not given."""
    source = "--gpu"
    items = [item for word in ([words] if isinstance(words, str) else words) for item in _split(word)]
    if any(item.lower() == NO_GPU for item in items):
        if len(items) > 1 or keep_ptx:
            raise UsageError(
                "--gpu none removes all GPU code: it cannot be combined with other GPUs or --keep-ptx.",
                "Leave one of them out.",
            )
        return Targets((), source=source)
    if not items:
        source = ARCH_LIST_VARIABLE
        items = re.findall(r"[^;,\s]+", environment.get(ARCH_LIST_VARIABLE, ""))
    if not items:
        raise UsageError(
            "No GPU was given.",
            f"Add --gpu 9.0 (or sm_90, a product name, native, none), or set {ARCH_LIST_VARIABLE}.",
        )
    archs = dict.fromkeys(arch for item in items for arch in _read(item, catalog, native or native_gpus))
    return Targets(tuple(archs), keep_ptx or any(arch.ptx for arch in archs), source)


def read_gpus(words: str | Iterable[str | Capability], catalog: Catalog) -> tuple[Capability, ...]:
    """The GPUs that are named, one or several, in the words of `read_targets`; none where none is named."""
    texts = [words] if isinstance(words, str) else [str(word) for word in words]
    return read_targets(texts, catalog, {}).devices if texts else ()


def _split(word: str) -> list[str]:
    """`8.0,9.0` and `8.0 9.0` are two targets; `RTX 4090` is one."""
    items = [item.strip() for item in re.split(r"[,;]", word) if item.strip()]
    return [part for item in items for part in (item.split() if _all_archs(item.split()) else [item])]


def _all_archs(words: Sequence[str]) -> bool:
    try:
        TorchArch.parse_list(" ".join(words))
    except ValueError:
        return False
    return True


def _read(item: str, catalog: Catalog, native: NativeGpus) -> Iterator[TorchArch]:
    if item.lower() == NATIVE:
        yield from (TorchArch(capability) for capability in native())
        return
    ptx = item.upper().endswith("+PTX")
    name = item[: -len("+PTX")] if ptx else item
    if match := _SM_SUFFIXED.fullmatch(name):
        name = f"{match[1]}.{match[2]}{match[3].lower()}"
    try:
        (arch,) = TorchArch.parse_list(name)
    except ValueError:
        yield TorchArch(catalog.gpu(name).capability, ptx=ptx)
        return
    gpu = catalog.gpu(str(arch.capability))
    if arch.suffix is Suffix.ARCH and not gpu.arch_specific:
        raise ImpossibleError(f"There is no sm_{arch.capability.number}a.", f"Write {arch.capability} instead.")
    yield TorchArch(arch.capability, arch.suffix, ptx)
    if arch.suffix is Suffix.FAMILY:
        # code of a family runs on all its members, so 10.0f means all of them
        yield from (TorchArch(member) for member in sorted(gpu.family_members - {arch.capability}))


def native_gpus() -> tuple[Capability, ...]:
    """The capabilities of this machine's GPUs that CUDA programs may use."""
    gpus = [gpu for gpu in detect().gpus if gpu.visible]
    found = {gpu.compute for gpu in gpus}
    if not found or None in found:
        unknown = next((gpu.label for gpu in gpus if gpu.compute is None), None)
        raise EnvironmentProblem(
            f"The capability of {unknown} is unknown." if unknown else "This machine has no usable NVIDIA GPU.",
            "Name the target instead, such as --gpu 9.0; `torchtailor detect` lists what was found.",
        )
    return tuple(sorted(capability for capability in found if capability))
