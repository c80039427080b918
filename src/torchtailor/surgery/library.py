"""Tailors one shared library: plan, surgery, proof, and only then the output.

    rules = load_catalog().rules
    policy = Policy(targets=TorchArch.parse_list("9.0"), rules=rules, keep_ptx=False)
    result = tailor_library(Path("libx.so"), Path("out/libx.so"), policy, strip=True)

`dst=None` is the dry run: all but writing and proof is done, and `size_after` is exact (recompression is left out of
it). Whether the library is NVIDIA's own is found from its name and soname (`makers.py`); that only decides how
careful the cut is. Whether NVIDIA's libraries may be cut at all is the caller's decision.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torchtailor.binary.elf import ElfFile
from torchtailor.binary.elf_headers import DynamicTag
from torchtailor.disk import hash_file, new_file
from torchtailor.errors import BadInputError, CheckFailedError, EnvironmentProblem, TorchtailorError
from torchtailor.gpucode.fatbin import ArchKey, Image
from torchtailor.gpucode.policy import Policy
from torchtailor.gpucode.scan import LibraryCode
from torchtailor.licences import maker_of
from torchtailor.surgery.files import FileSource, open_file
from torchtailor.surgery.image_cache import StockPayloads
from torchtailor.surgery.plan import Keep, choose_images, make_plan
from torchtailor.surgery.proof.prove import Library, prove
from torchtailor.surgery.recompress import Recompress, Recompression, recompress_images
from torchtailor.surgery.result import CodeTally, LibraryResult, Recompressed, Status
from torchtailor.surgery.strip import removable_sections
from torchtailor.surgery.write import Surgery, check_layout, prepare, write

__all__ = ["LibraryResult", "Recompress", "Status", "reading_once", "tailor_library"]


def tailor_library(
    src: Path,
    dst: Path | None,
    policy: Policy,
    *,
    strip: bool = True,
    recompress: Recompress | None = None,
    durable: bool = False,
) -> LibraryResult:
    """Cut `src` for the targets of `policy` and put the proven result at `dst`.

    The output is written beside `dst` as a temporary file, proven against `src`, given the mode of `src` and renamed
    into place; `dst` may be `src` itself. `durable` waits for the disk before the rename, so that not even a power
    cut leaves half a file. Where `result.status.written` is False, `dst` was not
    touched. `src` is never changed otherwise. Raises BadInputError for a damaged library, ImpossibleError for one
    whose layout nobody foresaw, CheckFailedError where the proof fails, EnvironmentProblem where the disk is
    full or read-only.
    """
    try:
        with _opened(src) as stock:
            return _Tailoring(src, stock, policy, strip=strip, recompress=recompress).run(dst, durable=durable)
    except TorchtailorError as error:
        if str(src) not in error.message:
            raise type(error)(f"{src}: {error.message}", error.hint) from error
        raise
    except OSError as error:
        raise EnvironmentProblem(
            f"{src}: {error.strerror or error}", "check free space and permissions of the output folder"
        ) from error


@dataclass(frozen=True)
class _Stock:
    """An open library and what was read of it."""

    library: Library

    @cached_property
    def sha256(self) -> str:
        return hash_file(self.library.source.fd)

    @cached_property
    def payloads(self) -> StockPayloads:
        return StockPayloads(self.library.source)


_kept = threading.local()


@contextmanager
def reading_once() -> Iterator[None]:
    """In this block a library that is cut several times, for several targets, is read once and stays open."""
    with ExitStack() as files:
        _kept.files, _kept.known = files, {}
        try:
            yield
        finally:
            del _kept.files, _kept.known


@contextmanager
def _opened(path: Path) -> Iterator[_Stock]:
    files: ExitStack | None = getattr(_kept, "files", None)
    if files is None:
        with open_file(path) as source:
            yield _Stock(Library.read(source))
        return
    status = path.stat()
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if key not in _kept.known:
        _kept.known[key] = _Stock(Library.read(files.enter_context(open_file(path))))
    yield _kept.known[key]


class _Tailoring:
    """One library on its way through plan, surgery and proof."""

    def __init__(
        self, path: Path, stock: _Stock, policy: Policy, *, strip: bool, recompress: Recompress | None
    ) -> None:
        self.stock = stock
        self.source, self.elf, self.code = stock.library.source, stock.library.elf, stock.library.code
        if maker_of(path, _soname(self.elf)):
            policy = replace(policy, keep_all_minors=True)
        self.policy = policy
        self.removed = removable_sections(self.elf) if strip else frozenset()
        self.recompress = recompress

    def run(self, dst: Path | None, *, durable: bool) -> LibraryResult:
        served = self.policy.usable(self.code.images)
        warnings = tuple(
            f"has nothing for {device}"
            for device in self.policy.devices
            if self.code.containers and device not in served
        )
        if self.code.containers and not served:
            return self._untouched(Status.NOTHING_FOR_TARGET, warnings)
        if not self.code.containers and not self.removed:
            return self._untouched(Status.NO_GPU_CODE)
        check_layout(self.elf)
        keep = choose_images(self.elf, self.code, self.policy)
        if not self.recompress or not self.code.containers or dst is None:
            return self._make(keep, None, warnings, dst, durable=durable)
        recompression = recompress_images(self.stock.payloads, keep, self.recompress)
        try:
            return self._make(keep, recompression, warnings, dst, durable=durable)
        except CheckFailedError:
            if not recompression.drop_damaged():
                raise
        recompression = recompress_images(self.stock.payloads, keep, self.recompress)
        return self._make(keep, recompression, warnings, dst, durable=durable)

    def _make(
        self,
        keep: Keep,
        recompression: Recompression | None,
        warnings: tuple[str, ...],
        dst: Path | None,
        *,
        durable: bool,
    ) -> LibraryResult:
        plan = make_plan(self.elf, self.code, keep, recompression.new if recompression else {})
        surgery = prepare(self.elf, plan, self.removed)
        result = self._result(surgery, keep, recompression.summary if recompression else None, warnings)
        if not result.status.written or dst is None:
            return result
        dst.parent.mkdir(parents=True, exist_ok=True)
        with new_file(dst, durable=durable) as file, ThreadPoolExecutor(1) as other:
            fd = file.fileno()
            sha256_in = other.submit(lambda: self.stock.sha256)  # runs outside of Python's lock, on another core
            write(surgery, self.source, fd)
            policy = self.policy if self.code.containers else None
            proven = recompression.proven if recompression else None
            output = FileSource(fd)
            prove(self.stock.library, output, policy, stripped=bool(self.removed), proven=proven)
            result = replace(result, sha256_out=hash_file(fd), sha256_in=sha256_in.result())
            os.fchmod(fd, os.fstat(self.source.fd).st_mode & 0o7777)
        return result

    def _untouched(self, status: Status, warnings: tuple[str, ...] = ()) -> LibraryResult:
        gpu = self.code.stored_size
        return LibraryResult(status, self.source.size, self.source.size, gpu, gpu, self.source.size, warnings=warnings)

    def _result(
        self,
        surgery: Surgery,
        keep: Keep,
        recompressed: Recompressed | None,
        warnings: tuple[str, ...],
    ) -> LibraryResult:
        if surgery.size >= self.source.size:
            status = Status.UNCHANGED if self.code.containers else Status.NO_GPU_CODE
            return self._untouched(status, warnings)
        kept, dropped = _tallies(self.code, keep)
        gpu_after = sum(cut.size for cut in surgery.plan.cuts)
        loaded = sum(load.file_size for load in self.elf.loads)
        return LibraryResult(
            status=Status.TAILORED if self.code.containers else Status.STRIPPED,
            size_before=self.source.size,
            size_after=surgery.size,
            gpu_before=self.code.stored_size,
            gpu_after=gpu_after,
            floor=loaded - self.code.stored_size + gpu_after,
            kept=kept,
            dropped=dropped,
            stripped=tuple(s.name for s in self.elf.sections if s.index in self.removed),
            recompressed=recompressed,
            warnings=warnings,
        )


def _tallies(code: LibraryCode, keep: Keep) -> tuple[dict[str, CodeTally], dict[str, CodeTally]]:
    """Images kept and dropped, by architecture."""
    sides: tuple[dict[ArchKey, list[Image]], dict[ArchKey, list[Image]]] = ({}, {})
    for found in code.containers:
        stays = found.images if found.address is None else keep[found.container.offset]
        offsets = {image.offset for image in stays}
        for image in found.images:
            sides[image.offset not in offsets].setdefault(image.arch_key, []).append(image)
    kept, dropped = ({images[0].label: _tally(images) for images in side.values()} for side in sides)
    return dict(sorted(kept.items())), dict(sorted(dropped.items()))


def _tally(images: list[Image]) -> CodeTally:
    return CodeTally(len(images), sum([image.stored_size for image in images]))


def _soname(elf: ElfFile) -> str:
    """The name by which others load the library; empty where it has none or it cannot be read."""
    name, table = elf.dynamic_value(DynamicTag.SONAME), elf.dynamic_value(DynamicTag.STRTAB)
    offset = elf.offset_of(table) if table is not None else None
    if name is None or offset is None:
        return ""
    try:
        data = bytes(elf.read(offset + name, min(256, elf.size - offset - name)))
    except BadInputError:
        return ""
    return data.partition(b"\0")[0].decode("utf-8", "replace")
