"""Tailors one shared library: plan, surgery, proof, and only then the output.

    cut = Cut(Targets(TorchArch.parse_list("9.0")), strip=True)
    result = tailor_library(Path("libx.so"), Path("out/libx.so"), cut)

`dst=None` is the dry run: everything but writing and proof is done, and `size_after` is exact (without recompression
and packed relocations). Whether the library is NVIDIA's own is found from its name and soname; that only decides how
much of it stays. Whether NVIDIA's libraries may be cut at all is the caller's decision.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torchtailor.catalog import CodeKind, Fit
from torchtailor.code.binary.elf import FETCH_AGAIN, ElfFile
from torchtailor.code.binary.instructions import instructions_sha256
from torchtailor.code.gpucode.fatbin import ArchKey, Compression, Image, ImageKind, codes_of
from torchtailor.code.gpucode.fitness import gpu_fit
from torchtailor.code.gpucode.foreign import foreign_platform
from torchtailor.code.gpucode.kernels import kernel_names, may_have_kernels
from torchtailor.code.gpucode.policy import KeptCode
from torchtailor.code.gpucode.report import summarise
from torchtailor.code.gpucode.scan import LibraryCode, Reference
from torchtailor.core.disk import copy_attributes, hash_file, new_file, staging_folder
from torchtailor.core.errors import (
    BadInputError,
    CheckFailedError,
    EnvironmentProblem,
    ImpossibleError,
    TorchtailorError,
)
from torchtailor.core.format import human_bytes
from torchtailor.surgery.cut import Cut, HostPages, PackCompression
from torchtailor.surgery.files import FileSource, copy_range, copy_sparse, open_file
from torchtailor.surgery.filler import find_filler
from torchtailor.surgery.hooked import hookable, is_hooked, with_hook
from torchtailor.surgery.host_pages import page_keys, plan_pages, write_hot
from torchtailor.surgery.image_cache import StockPayloads
from torchtailor.surgery.moved import MovedCode, describe, move_code, pack_name, write_pages
from torchtailor.surgery.opened import OpenLibrary
from torchtailor.surgery.page_plan import WORTH, WORTH_UNOPENED, NotPagedError, WantedPages
from torchtailor.surgery.plan import KeptImages, make_plan
from torchtailor.surgery.proof.host_pages import prove_pages
from torchtailor.surgery.proof.prove import prove
from torchtailor.surgery.recompress import Recompression, recompress_images
from torchtailor.surgery.result import CodeTally, LibraryResult, LibraryStatus, PagesLeft, Recompressed
from torchtailor.surgery.strip import removable_sections
from torchtailor.surgery.unwind import dead_tables
from torchtailor.surgery.write import Surgery, check_layout, prepare, write
from torchtailor.workload.host_table import host_table
from torchtailor.workload.identity import library_identity
from torchtailor.workload.pack import Pack, PackPlace

_log = logging.getLogger(__name__)


def tailor_library(
    src: Path,
    dst: Path | None,
    options: Cut,
    *,
    durable: bool = False,
    sha256: str = "",
    pack: PackPlace | None = None,
) -> LibraryResult:
    """Cut `src` for the targets of the options' policy and put the proven result at `dst`.

    The output is written beside `dst` as a temporary file, proven against `src`, given the mode and the attributes of
    `src` and renamed into place; `dst` may be `src` itself. `durable` waits for the disk before the rename, so that not
    even a power cut leaves half a file. `sha256` is that of `src`, where the caller knows it. `pack` says where the
    pack of what the options' workload does not use goes; without it the pack is made for the proof alone. Where
    `result.status.changed` is False, `dst` was not touched. `src` is never changed otherwise. Raises BadInputError for
    a damaged library, UnsupportedLayoutError for one that is laid out oddly, another ImpossibleError where the target's
    driver cannot read code that stays, CheckFailedError where the proof fails, EnvironmentProblem where the disk is
    full or read-only.
    """
    began = time.monotonic()
    try:
        with _opened(src) as stock:
            result = _Tailoring(src, stock, options, sha256, pack or PackPlace(None)).run(dst, durable=durable)
    except TorchtailorError as error:
        hint = error.hint or (FETCH_AGAIN if isinstance(error, BadInputError) else "")
        named = error.message if str(src) in error.message else f"{src}: {error.message}"
        raise type(error)(named, hint) from error
    except OSError as error:
        raise EnvironmentProblem(
            f"{src}: {error.strerror or error}.", "Check free space and permissions of the output folder."
        ) from error
    said = f"{result.status.value}{f' ({result.reason})' if result.reason else ''}"
    sizes = f"{human_bytes(result.size_before)} -> {human_bytes(result.size_after)}"
    _log.info("%s: %s, %s, %.2f s", src.name, said, sizes, time.monotonic() - began)
    return result


@dataclass(frozen=True)
class _Stock:
    """An open library and what was computed from it."""

    library: OpenLibrary

    @cached_property
    def sha256(self) -> str:
        return hash_file(self.library.source.fd)

    @cached_property
    def instructions_sha256(self) -> str:
        return instructions_sha256(self.library.elf)

    @cached_property
    def payloads(self) -> StockPayloads:
        return StockPayloads(self.library.source)


_kept = threading.local()
_PAGED = (
    "was cut to the pages that a program touched before, and keeps what it has: `torchtailor restore` brings the "
    "whole one back"
)
_HOOKED = (
    "was cut to a program before, or split, and keeps what it has: to change that, restore it or cut the stock one"
)


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
            yield _Stock(OpenLibrary.read(source))
        return
    status = path.stat()
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    if key not in _kept.known:
        _kept.known[key] = _Stock(OpenLibrary.read(files.enter_context(open_file(path))))
    yield _kept.known[key]


class _NothingGainedError(Exception):
    """Packed relocations were all there was to gain, and they gain nothing; why."""


class _Tailoring:
    """One library from plan to surgery to proof."""

    def __init__(self, path: Path, stock: _Stock, options: Cut, sha256: str, place: PackPlace) -> None:
        self.stock = stock
        self.name = path.name
        self.place = place
        self.sha256 = sha256
        self.moved: MovedCode | None = None
        self.only_ptx: tuple[str, ...] = ()
        self.source, self.elf, self.code = stock.library.source, stock.library.elf, stock.library.code
        self.options = options
        self.policy = options.policy.for_library(path.name, self.code.soname)
        symbols = removable_sections(self.elf)
        self.removed = symbols if options.strip else frozenset()
        left = symbols - self.removed
        self.wanted = self._wanted_pages()
        self.could_strip = sum(s.size for s in self.elf.sections if s.index in left and s.in_file)

    def _without_code(self, dst: Path | None, *, durable: bool) -> LibraryResult:
        """One without GPU code: symbol tables, relocations and pages may go."""
        if foreign := foreign_platform(self.elf):
            return replace(self._untouched(LibraryStatus.NO_GPU_CODE), foreign=foreign, could_strip=0)
        if not self.removed and not self.options.relr and not self.wanted:
            return self._untouched(LibraryStatus.NO_GPU_CODE)
        check_layout(self.elf)
        return self._make({}, None, (), dst, durable=durable)

    def _wanted_pages(self) -> WantedPages | None:
        """What of its pages stays, where the workload tells and others leave."""
        workload, options = self.options.workload, self.options
        if workload is None or options.pages is HostPages.KEEP or self.options.split:
            return None
        identity = library_identity(self.elf, self.code)
        touched = workload.touched(identity)
        unopened = options.packs_unopened and workload.never_loaded(identity, self.name)
        every = unopened or options.pages is HostPages.ALL
        apart = every and options.pack_compress is not PackCompression.NONE
        worth = WORTH_UNOPENED if unopened else WORTH
        name = pack_name(self.name, options, None, ())
        gpu = frozenset(found.section for found in self.code.containers)
        rest = options.least_gap, options.debuggable, self.place.hook, name, apart, worth, gpu
        wanted = WantedPages(touched, identity, every, *rest)
        return wanted if touched or unopened else None

    def run(self, dst: Path | None, *, durable: bool) -> LibraryResult:
        if host_table(self.elf):
            return self._untouched(LibraryStatus.UNCHANGED, (_PAGED,))
        if not self.code.containers:
            return self._without_code(dst, durable=durable)
        if is_hooked(self.elf):  # most of its code is elsewhere, where this cut does not reach
            return self._untouched(LibraryStatus.UNCHANGED, (_HOOKED,))
        kept = self.policy.keep(self.code.containers, lambda image: kernel_names(self.source, image))
        missing = [device for device in self.policy.devices if device not in kept.served]
        warnings = tuple(f"has nothing for {device}" for device in missing if self._has_kernels())
        self.only_ptx = self._targets_of_ptx(kept)
        if self.options.split:
            return self._split(kept, dst, durable=durable)
        if not kept.served and not self.policy.targets.none:
            return self._untouched(LibraryStatus.NOTHING_FOR_TARGET, warnings)
        self._check_driver(kept.images)
        check_layout(self.elf)
        offsets = (found.container.offset for found in self.code.containers)
        keep = dict(zip(offsets, kept.images, strict=True))
        if self.options.workload and not hookable(self.elf):
            warnings += ("keeps all its code: it reaches the driver in a way that no hook can see",)
        else:
            self.moved = move_code(self.stock.library, self.name, keep, self.options)
            workload = self.options.workload
            if self.moved and workload and workload.knows_another(self.name, self.moved.identity):
                warnings += (
                    "is of another release than the one that was recorded, so none of its code counts as used",
                )
        if not self.options.recompress or dst is None:
            return self._make(keep, None, warnings, dst, durable=durable)
        loaded = {found.container.offset for found in self.code.containers if found.loaded}
        loaded.difference_update(self.moved.keys if self.moved else ())
        stored = {offset: images for offset, images in keep.items() if offset in loaded}
        recompression = recompress_images(self.stock.payloads, stored, self.options)
        try:
            return self._make(keep, recompression, warnings, dst, durable=durable)
        except CheckFailedError:
            if not recompression.drop_damaged():
                raise
        recompression = recompress_images(self.stock.payloads, stored, self.options)
        return self._make(keep, recompression, warnings, dst, durable=durable)

    def _has_kernels(self) -> bool:
        return any(may_have_kernels(self.source, image) for image in self.code.images)

    def _split(self, kept: KeptCode, dst: Path | None, *, durable: bool) -> LibraryResult:
        """All that a hook can hand out leaves the library, and what the targets use of it is in the pack; so the
        library is the same for all targets, and so is what it keeps: what no hook can hand out, for all GPUs."""
        check_layout(self.elf)
        used = {
            found.container.offset: own if kept.served or not found.can_be_cut else ()
            for found, own in zip(self.code.containers, kept.images, strict=True)
        }
        if hookable(self.elf):
            self.moved = move_code(self.stock.library, self.name, used, self.options)
        whole = {found.container.offset: found.images for found in self.code.containers}
        result = self._make(whole, None, (), dst, durable=durable)
        if not self.moved or not result.status.changed:
            return result
        packed = _by_label(image for offset in self.moved.keys for image in used[offset])
        return replace(result, packed=packed, moved_digest=self.moved.digest)

    def _targets_of_ptx(self, kept: KeptCode) -> tuple[str, ...]:
        """The targets for which the driver has to compile, or to link, most of what they use."""
        jit = (ImageKind.PTX, ImageKind.RELOCATABLE_PTX, ImageKind.CONCATENATED)
        linked = any(found.reference is Reference.PRELINKED for found in self.code.containers)
        if not linked and not any(image.kind in jit for images in kept.images for image in images):
            return ()
        report = summarise(self.name, self.code)
        rules = self.policy.rules
        return tuple(str(gpu) for gpu in self.policy.devices if gpu_fit(report, gpu, rules).fit is Fit.JIT)

    def _check_driver(self, kept: tuple[tuple[Image, ...], ...]) -> None:
        """Refuse code that stays and that the oldest driver cannot read; LTO-IR and bare frames are not for it."""
        if self.options.reads_zstd:
            return
        for image in (image for images in kept for image in images):
            if image.compression is Compression.ZSTD and image.kind is not ImageKind.LTOIR and not image.bare:
                raise ImpossibleError(
                    f"Its code for {image.label} is stored as zstd, which needs driver 550.54 or newer, "
                    f"and the target has {self.options.driver}.",
                    "Use a newer driver, or a build of the package for an older CUDA (its code is LZ4).",
                )

    def _make(
        self,
        keep: KeptImages,
        recompression: Recompression | None,
        warnings: tuple[str, ...],
        dst: Path | None,
        *,
        durable: bool,
    ) -> LibraryResult:
        keys = self.moved.keys if self.moved else {}
        plan = make_plan(self.elf, self.code, keep, recompression.new if recompression else {}, keys)
        cut = any(len(container.images) < len(container.found.images) for container in plan.containers)
        changes = cut or self.removed or recompression
        unused = (find_filler(self.elf), dead_tables(self.elf)) if changes else ()
        surgery = prepare(self.elf, plan, self.removed, *unused)
        result = self._result(surgery, keep, recompression.summary if recompression else None, warnings)
        operates = result.status.changed
        if not operates:
            self.moved = None
        if self.wanted:
            result = self._with_planned_pages(result)
        if dst is None or not (result.status.changed or self.options.relr):
            return result
        try:
            return self._written(result, surgery if operates else None, recompression, dst, durable=durable)
        except _NothingGainedError as reason:
            return replace(result, not_packed=str(reason))

    def _written(
        self,
        result: LibraryResult,
        surgery: Surgery | None,
        recompression: Recompression | None,
        dst: Path,
        *,
        durable: bool,
    ) -> LibraryResult:
        """Write the output, prove it and put it in place; without a surgery nothing but relocations and pages leave."""
        dst.parent.mkdir(parents=True, exist_ok=True)
        with new_file(dst, durable=durable) as file, ThreadPoolExecutor(2) as other, ExitStack() as packing:
            fd = file.fileno()
            pack = None
            if self.moved:
                folder = None if result.pages else self.place.folder  # the pages come to the same pack
                pack = packing.enter_context(self.moved.written(self.source, folder, dst.parent))
            # runs outside of Python's lock, on another core
            hashes_in = other.submit(lambda: (self.sha256 or self.stock.sha256, self.stock.instructions_sha256))
            if surgery:
                write(surgery, self.source, fd)
                hash_out = other.submit(hash_file, fd)
                cuts = self.code.containers and not (self.options.split and self.moved is None)
                policy = self.policy if cuts else None
                proven = recompression.proven if recompression else None
                output = FileSource(fd)
                split, stripped = self.options.split, bool(self.removed)
                prove(self.stock.library, output, policy, stripped=stripped, proven=proven, pack=pack, split=split)
            else:
                copy_range(self.source, 0, fd, 0, self.source.size)
            if self.moved and pack:
                with_hook(fd, self.place.hook, dst.parent)
                size = os.fstat(fd).st_size
                result = replace(result, size_after=size, pack=self.moved.name, pack_size=pack.source.size)
            if self.options.relr:
                result = self._with_relr(result, fd, dst.parent)
            if result.pages:
                result = self._with_pages(result, fd, pack, dst.parent)
            if result.pack and self.place.folder:
                result = replace(result, pack_sha256=hash_file(self.place.folder / result.pack))
            sha256_in, instructions = hashes_in.result()
            # a hook or packed relocations have changed the file since it was hashed
            sha256_out = hash_file(fd) if self.moved or result.relr or result.pages else hash_out.result()
            result = replace(
                result, sha256_out=sha256_out, sha256_in=sha256_in, instructions_sha256=instructions
            )  # the proof compared the instructions: they are the output's too
            copy_attributes(self.source.fd, fd)
            os.fchmod(fd, os.fstat(self.source.fd).st_mode & 0o7777)
        return result

    def _with_relr(self, result: LibraryResult, fd: int, folder: Path) -> LibraryResult:
        from torchtailor.surgery.relr import with_relr

        saved, reason = with_relr(fd, folder)
        if not saved and not result.status.changed:
            raise _NothingGainedError(reason)
        status = result.status if result.status.changed else LibraryStatus.STRIPPED
        return replace(result, status=status, size_after=os.fstat(fd).st_size, relr=saved, not_packed=reason)

    def _with_planned_pages(self, result: LibraryResult) -> LibraryResult:
        """What a cut to the touched pages would leave; `not_paged` says why it is not done."""
        assert self.wanted is not None
        try:
            check_layout(self.elf)
            plan = plan_pages(self.elf, self.wanted)
        except NotPagedError as reason:
            return replace(result, not_paged=str(reason))
        status = LibraryStatus.CUT
        left = PagesLeft(plan.left, plan.saved, plan.runs, self.wanted.data)
        size = max(result.size_after - plan.saved + plan.moved, 0)
        return replace(result, status=status, size_after=size, pages=left)

    def _with_pages(self, result: LibraryResult, fd: int, code: Pack | None, folder: Path) -> LibraryResult:
        """Cut the file to its touched pages, and write the pack, with what went there before."""
        assert self.wanted is not None
        source = FileSource(fd)
        plan = plan_pages(ElfFile(source), self.wanted)
        with staging_folder(folder) as scratch:
            keys = page_keys(plan, source)
            name = pack_name(self.name, self.options, self.moved, keys)
            path = (self.place.folder or scratch) / name
            with (scratch / "hot").open("xb+") as hot:
                paged = write_hot(plan, keys, source, hot.fileno(), name)
                about = describe(self.name, self.wanted.identity, self.options)
                write_pages(path, plan, keys, source, code, about, self.options)
                search = f"$ORIGIN/{self.place.hook}" if self.place.hook else "$ORIGIN"
                output = FileSource(hot.fileno())
                with open_file(path) as pack:
                    prove_pages(source, output, pack, search)
                    size = pack.size
                copy_sparse(output, fd)
        pages = PagesLeft(paged.hot, plan.saved, paged.runs, self.wanted.data)
        return replace(result, size_after=os.fstat(fd).st_size, pack=name, pack_size=size, pages=pages)

    def _untouched(self, status: LibraryStatus, warnings: tuple[str, ...] = ()) -> LibraryResult:
        size, gpu = self.source.size, self.code.stored_size
        could_strip = 0 if status is LibraryStatus.NOTHING_FOR_TARGET else self.could_strip
        result = LibraryResult(status, size, size, gpu, gpu, floor=size, warnings=warnings, could_strip=could_strip)
        return replace(result, only_ptx=self.only_ptx, ptx=_has_ptx(self.code.images))

    def _result(
        self,
        surgery: Surgery,
        keep: KeptImages,
        recompressed: Recompressed | None,
        warnings: tuple[str, ...],
    ) -> LibraryResult:
        stays, moved = _sides(keep, self.moved.keys if self.moved else {})
        kept, dropped = _tallies(self.code, keep, stays)
        packed = recompressed is not None and recompressed.images > 0
        smaller = surgery.size < self.source.size or (surgery.size == self.source.size and surgery.zeroed)
        if not smaller or not (dropped or moved or packed or surgery.filler or self.removed):
            status = LibraryStatus.UNCHANGED if self.code.containers else LibraryStatus.NO_GPU_CODE
            return self._untouched(status, warnings)
        gpu_after = sum(container.size for container in surgery.plan.containers)
        loaded = sum(load.file_size for load in self.elf.loads)
        filler = sum(span.size for span in surgery.filler)
        return LibraryResult(
            status=LibraryStatus.CUT if dropped or moved or packed else LibraryStatus.STRIPPED,
            size_before=self.source.size,
            size_after=surgery.size,
            gpu_before=self.code.stored_size,
            gpu_after=gpu_after,
            floor=loaded - self.code.stored_size + gpu_after + surgery.plan.mapped - filler,
            kept=kept,
            dropped=dropped,
            moved=_by_label(moved),
            stripped=tuple(s.name for s in self.elf.sections if s.index in self.removed),
            recompressed=recompressed,
            warnings=warnings,
            could_strip=self.could_strip,
            zeroed=surgery.zeroed,
            filler=filler,
            only_ptx=self.only_ptx,
            ptx=_has_ptx(image for images in keep.values() for image in images),
        )


def _has_ptx(images: Iterable[Image]) -> bool:
    return any(code.kind is CodeKind.PTX for code in codes_of(images))


def _sides(keep: KeptImages, moved: Mapping[int, bytes]) -> tuple[list[Image], list[Image]]:
    """The images that stay in the library, and those that go to a pack."""
    stay = [image for offset, images in keep.items() if offset not in moved for image in images]
    return stay, [image for offset in moved for image in keep[offset]]


def _tallies(
    code: LibraryCode, keep: KeptImages, stay: list[Image]
) -> tuple[dict[str, CodeTally], dict[str, CodeTally]]:
    """Images kept in the library and dropped, by architecture."""
    wanted = {image.offset for images in keep.values() for image in images}
    return _by_label(stay), _by_label(image for image in code.images if image.offset not in wanted)


def _by_label(images: Iterable[Image]) -> dict[str, CodeTally]:
    by_arch: dict[ArchKey, list[Image]] = {}
    for image in images:
        by_arch.setdefault(image.arch_key, []).append(image)
    by_label: dict[str, list[Image]] = {}
    for same in by_arch.values():
        by_label.setdefault(same[0].label, []).extend(same)
    return {label: _tally(by_label[label]) for label in sorted(by_label)}


def _tally(images: list[Image]) -> CodeTally:
    return CodeTally(len(images), sum([image.stored_size for image in images]))
