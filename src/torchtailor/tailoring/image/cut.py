"""Cuts one image: reads its layers, cuts its libraries, and writes those layers anew that hold something to change."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from torchtailor.core.disk import disk_errors
from torchtailor.core.errors import ImpossibleError, NoMatchError, UsageError
from torchtailor.core.format import counted, printable
from torchtailor.core.progress import Progress
from torchtailor.core.version import __version__
from torchtailor.oci.compression import LayerCompression, LayerWriter, UnpackedLayer, WrittenLayer, ahead
from torchtailor.oci.descriptor import Descriptor
from torchtailor.oci.estargz import layer_writer
from torchtailor.oci.filesystem import Content, LayerFile, MemberKind
from torchtailor.oci.imagespec import (
    ImageConfig,
    ImageManifest,
    NewLayer,
    digest_of,
    layer_type,
    new_manifest,
    read_manifest,
)
from torchtailor.oci.referrers import Attachment
from torchtailor.oci.rewrite import LayerChanges, NewMember
from torchtailor.oci.tarstream import BLOCK
from torchtailor.oci.transports.base import Document, ImageDestination, ImageSource
from torchtailor.oci.transports.copying import copy_blob
from torchtailor.surgery.cut import UNOPENED, Cut, HostPages
from torchtailor.surgery.result import LibraryResult, LibraryStatus
from torchtailor.tailoring.caches import MadeCaches, baked_caches
from torchtailor.tailoring.image.cold import LABEL, ColdPack, attachment_of, packed_cold, packs_label
from torchtailor.tailoring.image.libraries import ImageLibraries
from torchtailor.tailoring.image.options import Cold, ImageOptions
from torchtailor.tailoring.image.packages import Packages
from torchtailor.tailoring.image.provenance import bill_of, provenance_of
from torchtailor.tailoring.image.result import DoubledFile, ImageLibrary, ImageResult, LayerResult
from torchtailor.tailoring.image.survey import FoundLibrary, ImageSurvey, counted_pieces, doubled
from torchtailor.tailoring.left_out import distinct, stand_ins
from torchtailor.tailoring.module_index import MadeIndex, module_indexes
from torchtailor.tailoring.packs import check_tools_for, folders_of_packs
from torchtailor.tailoring.tree import NewFile, left_out_of
from torchtailor.tailoring.without_gpu import WithoutGpu
from torchtailor.trees.artifact.drops import DroppedFile, Drops, default_rules, drop_rules
from torchtailor.trees.artifact.sites import installed_path
from torchtailor.workload.moved_modules import PACK_OF_MODULES
from torchtailor.workload.pack import PACK_FOLDER, PACK_SUFFIX

ANNOTATION_VERSION = "torchtailor.core.version"
ANNOTATION_SOURCE = "torchtailor.source.digest"
ANNOTATION_GPUS = "torchtailor.gpus"
ANNOTATION_BASE = "org.opencontainers.image.base.digest"
ANNOTATION_BASE_NAME = "org.opencontainers.image.base.name"

_KEPT = 4 << 30  # bytes of libraries that are kept from the first reading, where the disk has eight times as much
_MOST_NAMED = 100  # doubled files that are listed
_PIECE = 1 << 20
_WITH_BYTES = (MemberKind.FILE, MemberKind.SPARSE, MemberKind.HARD_LINK)


@dataclass(frozen=True)
class CutImage:
    """The new manifest (the old one, byte for byte, where nothing changed), and what was done."""

    document: Document
    result: ImageResult
    attached: Callable[[Descriptor], tuple[Attachment, ...]] = lambda _: ()  # what refers to it, once it has a digest


@dataclass(frozen=True)
class ImageCutter:
    """Cuts the images of one source for one destination; without one nothing is written but temporary files."""

    source: ImageSource
    target: ImageDestination  # where it is to go; a dry run never opens it
    destination: ImageDestination | None
    options: ImageOptions
    progress: Progress
    staging: Path
    base: str = ""  # the name of the stock image, where others can find it too
    goal: str = ""  # the new one's, without where it lies on this machine

    def cut(self, document: Document, platform: str | None = None) -> CutImage:
        """Cut the image of a manifest, if it is for this platform, and send all of it but the manifest."""
        name = self.source.name
        manifest = read_manifest(document, name)
        folder = self.staging / document.descriptor.hex[:16]
        folder.mkdir(exist_ok=True)
        try:
            with disk_errors(folder, unchanged="No image was written."):
                image = _OneImage(self, manifest, folder)
                own = image.config.platform
                if platform and not f"{own}/".startswith(f"{platform}/"):
                    raise NoMatchError(f"{name} is for {own}, not for {platform}.", "Leave out --platform.")
                return image.cut()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def send_file(self, blob: Descriptor, path: Path) -> None:
        """Put a new blob into the destination; its file goes."""
        if self.destination:
            self.destination.put_file(blob, path)
        path.unlink(missing_ok=True)

    def send(self, blob: Descriptor, stored: Path | None = None) -> None:
        """Put an unchanged blob into the destination, at the least cost; what was stored of it goes."""
        if self.destination:
            copy_blob(blob, self.source, self.destination, stored)
        if stored is not None:
            stored.unlink(missing_ok=True)


@dataclass
class _OneImage:
    """The state of one cut."""

    cutter: ImageCutter
    manifest: ImageManifest
    folder: Path
    spooled: dict[str, Path] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    cuts: dict[int, dict[FoundLibrary, Path]] = field(default_factory=dict)  # by layer
    cold: LayerWriter | None = None  # the last layer, with all packs
    cold_paths: set[str] = field(default_factory=set)  # what it has
    packs: dict[str, ColdPack] = field(default_factory=dict)  # of the artifact, in its place, by path

    @property
    def options(self) -> ImageOptions:
        return self.cutter.options

    @cached_property
    def tailoring(self) -> Cut:
        return self.options.cut.with_default_strip()

    @cached_property
    def where(self) -> str:
        return self.cutter.source.name

    @cached_property
    def config(self) -> ImageConfig:
        return ImageConfig.read(self.cutter.source, self.manifest)

    @cached_property
    def survey(self) -> ImageSurvey:
        room = min(_KEPT, shutil.disk_usage(self.folder).free // 8)
        chosen = self.options.cut
        paged = chosen.workload if chosen.pages is not HostPages.KEEP else None
        none = chosen.targets.none
        packed = chosen.drop_unopened and not chosen.no_pack and not self.moves_unopened
        kept = packed or chosen.index_modules
        return ImageSurvey(
            self.folder, room, chosen.strip, chosen.relr, chosen.drop_unopened, paged, none, kept, packed
        )

    @property
    def in_parts(self) -> bool:
        """Whether every layer is written anew, so that none has to be pulled whole."""
        return self.options.compression is LayerCompression.ESTARGZ

    @property
    def moves_unopened(self) -> bool:
        """Whether files that were never opened go to the last layer as they are."""
        return self.tailoring.drop_unopened and self.options.packs_to is Cold.LAYER

    def cut(self) -> CutImage:
        check_tools_for(self.tailoring, self.config.machine)
        self._read_layers()
        self._check_licence()
        self._check_glibc()
        with ExitStack() as stack:
            if self.options.packs_to is Cold.LAYER and not self.tailoring.dry_run:
                self.cold = stack.enter_context(self._writer("cold", len(self.survey.layers) - 1))
            written = [self._layer(number) for number in range(len(self.manifest.layers))]
            if self.cold and not self.cold.is_empty:
                self.cold.write(bytes(2 * BLOCK))
                written.append(last := self.cold.finish())
                self._send_written(last)
        result = self._result(written)
        if result.useless_for_target:
            before = self.config.labels.get(ANNOTATION_GPUS)
            raise ImpossibleError(
                f"{self.where} ({result.platform}) has no GPU code that runs on {self.tailoring.targets}; no image was "
                "written.",
                f"It was cut for {printable(before) or 'machines without a GPU'} before: cut the stock image."
                if isinstance(before, str)
                else "`torchtailor inspect` lists its GPU code.",
            )
        if not any(written):
            self.cutter.send(self.manifest.config)
            return CutImage(self.manifest.document, result)
        document = self._new_documents(written)
        if not self.tailoring.dry_run:
            result = replace(result, digest_after=document.descriptor.digest)
        return CutImage(document, result, lambda cut: tuple(self._attached(cut, result)))

    def _attached(self, cut: Descriptor, result: ImageResult) -> Iterator[Attachment]:
        name, stock = self.cutter.goal, self.manifest.document.descriptor
        if self.packs:
            yield attachment_of(self.packs.values())
        if self.options.attest:
            yield provenance_of(name, cut, self.cutter.base, stock, result, self.options)
            yield bill_of(name, cut, self.packages, result, self.paths_left_out)

    # The first reading

    def _read_layers(self) -> None:
        config = self.config  # what is wrong with it is said before the long work
        layers = self.manifest.layers
        self.cutter.progress.begin("Reading layers", sum(layer.size for layer in layers))
        for number, layer in enumerate(layers):
            where = f"Layer {number + 1} of {self.where}"
            with self._pieces(layer, spool=True) as pieces:
                self.survey.add_layer(self._counted(pieces), layer.size, config.diff_ids[number], where)
            if self._settled(number):
                self.cutter.send(layer, self.spooled.pop(layer.digest, None))
                self.sent.add(number)

    def _counted(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        return counted_pieces(pieces, self.cutter.progress)

    @contextmanager
    def _counted_pieces(self, number: int) -> Iterator[Iterator[bytes]]:
        """The packed bytes of a layer once more."""
        with self._pieces(self.manifest.layers[number]) as pieces:
            yield self._counted(pieces)

    @contextmanager
    def _pieces(self, layer: Descriptor, *, spool: bool = False) -> Iterator[Iterator[bytes]]:
        """The packed bytes of a layer; what comes over a network is stored the first time."""
        stored = self.spooled.get(layer.digest)
        if stored is not None:
            with stored.open("rb", buffering=0) as file:
                yield iter(lambda: file.read(_PIECE), b"")
            return
        with self.cutter.source.blob(layer) as pieces:
            if not (spool and self.cutter.source.is_remote):
                yield pieces
                return
            place = self.folder / f"layer-{layer.hex[:16]}"
            with place.open("wb") as file:
                yield _teed(pieces, file)
            self.spooled[layer.digest] = place

    def _settled(self, number: int) -> bool:
        """Whether a layer certainly stays as it is, whatever later layers hold."""
        cut = self.tailoring
        if self.in_parts or self.options.squash_shadowed or cut.drop_unopened or cut.index_modules or cut.targets.none:
            return False
        if any(candidate.file.layer == number for candidate in self.survey.candidates.values()):
            return False
        texts = [text for text in self.survey.records if text.file.layer == number]
        if texts and Packages(self.survey).lists_library(texts):
            return False
        groups = [group for rule in self.tailoring.drops.rules for group in rule.files]
        own = self.survey.view.of_layer(number)
        return not any(group.has(installed_path(file.path)) for file in own for group in groups)

    # What goes

    @cached_property
    def packages(self) -> Packages:
        return Packages(self.survey)

    @cached_property
    def libraries(self) -> ImageLibraries:
        return ImageLibraries(
            self.where,
            self.manifest,
            self.survey,
            self.packages,
            self.tailoring,
            self.options.cut.strip,
            self._counted_pieces,
            self.cutter.progress,
            self.options.packs_to is Cold.ARTIFACT,
            self.moved,
        )

    @cached_property
    def dead(self) -> set[Content]:
        """The bytes that no visible name has."""
        live = self.survey.view.live_contents()
        return {file.content for file in self.survey.view.files} - live

    @cached_property
    def dropped(self) -> dict[str, DroppedFile]:
        """The paths that rules leave out, in every layer that has them."""
        found = left_out_of(self.packages, self.tailoring, every=self.moves_unopened).and_also(self.without.gone).files
        return {path: file for path, file in found.items() if file.rule != UNOPENED or not self.moves_unopened}

    @cached_property
    def moved(self) -> set[Content]:
        """The members that go to the last layer: what has other names in its own layer stays."""
        if not self.moves_unopened:
            return set()
        unopened = left_out_of(self.packages, self.tailoring, every=True).files
        names = Counter(file.content for file in self.survey.view.files)
        found = (self.survey.view.at(path) for path, file in unopened.items() if file.rule == UNOPENED)
        return {one.content for one in found if one and one.kind is MemberKind.FILE and names[one.content] == 1}

    @cached_property
    def without(self) -> WithoutGpu:
        """The packages that only a GPU needs."""
        return WithoutGpu.of(self.packages, self.tailoring).with_stand_ins(self.packages.asking)

    @cached_property
    def emptied(self) -> set[str]:
        """Folders that nothing is left in: Python would import one as a package without files."""
        stay = {file.path for file in self.survey.view.visible() if file.path not in self.without.gone}
        stay.update(stand_in.path for stand_in in self.without.stand_ins)
        return _folders_above(self.without.gone) - _folders_above(stay)

    def _check_licence(self) -> None:
        to = self.cutter.target
        if to.is_local or self.options.publish_nvidia or not self.tailoring.nvidia:
            return
        found = self.survey.candidates.values()
        theirs = [one for one in found if one.has_code and self.libraries.proprietary(one.content)]
        if theirs:
            number = counted(len(theirs), "library", "libraries")
            raise UsageError(
                f"{to.name} is not on this machine, and the image would hold {number} of NVIDIA's that were changed, "
                f"such as {printable(theirs[0].file.path)}.",
                "Read `torchtailor help licences`; then add --publish-nvidia, or leave out --nvidia.",
            )

    def _check_glibc(self) -> None:
        """Packed relocations are refused where the image's loader cannot read them."""
        if self.tailoring.relr and all(file.hidden_by is not None for file in self.survey.glibcs):
            raise ImpossibleError(
                f"--relr needs glibc 2.36 or newer, and {self.where} ({self.config.platform}) has none.",
                "Leave out --relr: all else works.",
            )

    @cached_property
    def left_out(self) -> dict[Content, str]:
        """The members that the new layers go without, and whether by a rule or because a later layer hides them.

        The bytes of a file stay as long as one of its names does, and so do the names that these are links to.
        """
        found: dict[Content, str] = {}
        names: dict[Content, list[tuple[LayerFile, str]]] = {}
        for file in self.survey.view.files:
            why = "rule" if file.path in self.dropped else ""
            if not why and self.options.squash_shadowed and file.hidden_by is not None:
                why = "shadowed" if file.kind in _WITH_BYTES else ""
            names.setdefault(file.content, []).append((file, why))
        for content, files in names.items():
            if any(why for _, why in files):
                stay = _staying(content, files)
                found |= {own: why for file, why in files if why and (own := (file.layer, file.number)) not in stay}
        return found

    # One layer

    def _layer(self, number: int) -> WrittenLayer | _Estimate | None:
        """Write a layer anew; None where it stays, and is sent as it is."""
        if number in self.sent:
            return None
        layer = self.manifest.layers[number]
        for later in sorted(self.packages.later_layers(number, self.left_out)):
            self._cut_libraries(later)
        cut = self._cut_libraries(number)
        results = self.libraries.results
        own = self.survey.view.of_layer(number)
        gone = frozenset(file.number for file in own if (number, file.number) in self.left_out)
        gone |= {folder for of, folder, path in self.survey.folders if of == number and path in self.emptied}
        replaced: dict[int, Path | bytes] = {one.file.number: path for one, path in cut.items()}
        for text in self.packages.of_layer(number, self.left_out):
            place = self.survey.view.at(f"{text.dist_info}/METADATA")
            if place and (metadata := self.packages.new_metadata(text, self.without)):
                replaced[place.number] = metadata
        added = self._added(number, cut)
        for update in self.packages.updated(
            number,
            results,
            self.libraries.added,
            self.paths_left_out,
            self.standing_in,
            self.left_out,
            self.tailoring,
            self.without,
            self.modules,
            self.indexes,
            self.baked,
        ):
            replaced[update.number] = update.record
            files = (file for file in own if file.path == update.manifest_path and file.kind is MemberKind.FILE)
            older = next(files, None) if update.manifest else None
            if older:
                replaced[older.number] = update.manifest
            elif update.manifest:
                new = NewMember(update.manifest_path, update.manifest, len(update.manifest))
                added.setdefault(update.number, []).append(new)
        sizes = {
            member: results[(number, member)].size_after if isinstance(new, Path) else len(new)
            for member, new in replaced.items()
        }
        moved = frozenset(file.number for file in own if file.content in self.moved)
        changes = LayerChanges(gone, replaced, sizes, added, moved)
        if not changes and not self.in_parts:
            self.cutter.send(layer, self.spooled.pop(layer.digest, None))
            return None
        if self.tailoring.dry_run:
            return _Estimate(changes.unpacked_after(self.survey.layers[number].unpacked_size, own))
        written = self._write(number, changes)
        self._send_written(written)
        self._send_packs()
        for path in cut.values():
            shutil.rmtree(path.parent)
        if stored := self.spooled.pop(layer.digest, None):
            stored.unlink()
        return written

    def _added(self, number: int, cut: Iterable[FoundLibrary]) -> dict[int, list[NewMember]]:
        """What comes after the members of a layer: packs and hooks after libraries, stand-ins in place of others."""
        added: dict[int, list[NewMember]] = {}
        written: set[str] = set()
        for library in sorted(cut, key=lambda library: library.file.number):
            for file in self.libraries.added.get(library.content, ()):
                added.setdefault(library.file.number, []).extend(self._new_members(file, written))
        for path, stand_in in self.standing_in.items():
            if (there := self.survey.view.at(path)) and there.layer == number:
                added[there.number] = [NewMember(stand_in.path, stand_in.content, stand_in.state.size)]
        for text in self.packages.of_layer(number, self.left_out):
            own = [
                NewMember(stand_in.path, stand_in.content, stand_in.size)
                for stand_in in self.without.stand_ins
                if self.packages.is_of(stand_in, text)
            ]
            for file in self.modules:
                if self.packages.is_of(file, text):
                    own += self._new_members(file, written)
            if own:
                added.setdefault(text.file.number, []).extend(own)
        return added

    def _new_members(self, file: NewFile, written: set[str]) -> list[NewMember]:
        """A file with the folders of packs that are new in its layer."""
        cold = file.path.endswith(PACK_SUFFIX)
        known = self.cold_paths if cold else written
        folders = folders_of_packs(file.path) if PACK_FOLDER in PurePosixPath(file.path).parts else []
        own = NewMember(file.path, file.content, file.state.size, cold)
        new = [one for one in (*(NewMember(path, cold=cold) for path in folders), own) if one.path not in known]
        known.update(one.path for one in new)
        return new

    def _cut_libraries(self, number: int) -> dict[FoundLibrary, Path]:
        """The libraries of a layer that changed, cut once."""
        if number not in self.cuts:
            wanted = [one for one in self.survey.of_layer(number) if one.content not in self.left_out]
            self.cuts[number] = self.libraries.cut(number, wanted)
        return self.cuts[number]

    @cached_property
    def paths_left_out(self) -> dict[str, DroppedFile]:
        """The paths that are no longer there because of a rule."""
        files = self.survey.view.files
        gone = {file.path for file in files if self.left_out.get((file.layer, file.number)) == "rule"}
        return {path: file for path, file in self.dropped.items() if path in gone}

    @cached_property
    def _instead(self) -> dict[str, tuple[NewFile, ...]]:
        return stand_ins(self.packages, self.paths_left_out)

    @cached_property
    def standing_in(self) -> dict[str, NewFile]:
        """What comes in the place of libraries."""
        return {path: new[0] for path, new in self._instead.items() if not path.endswith(".py")}

    @cached_property
    def indexes(self) -> tuple[MadeIndex, ...]:
        return module_indexes(self.packages, self.tailoring, {*self.paths_left_out, *self._moved_paths})

    @cached_property
    def _moved_paths(self) -> set[str]:
        """What is in the last layer, if it is there."""
        return {file.path for file in self.survey.view.files if file.content in self.moved}

    @cached_property
    def modules(self) -> list[NewFile]:
        """What finds modules that went to packs, which are apart, and those in indexes."""
        new = distinct(files for path, files in self._instead.items() if path.endswith(".py"))
        new += distinct([made.files for made in self.indexes], new)
        packs = [file for file in new if file.path.endswith(PACK_OF_MODULES)]
        for file in () if self.tailoring.dry_run else packs:
            if self.options.packs_to is Cold.ARTIFACT:
                place = file.put(self.folder / "modules" / file.owner.replace("/", "-"))
                self.libraries.apart.append(replace(file, content=place))
            elif self.tailoring.packs:
                file.put(self.tailoring.packs / PurePosixPath(file.path).parent.name)
        new += distinct([made.files for made in self.baked], new)
        return [file for file in new if file not in packs]

    @cached_property
    def baked(self) -> tuple[MadeCaches, ...]:
        return baked_caches(self.packages, self.tailoring)

    def _writer(self, name: str, like: int, first: Iterable[str] = ()) -> LayerWriter:
        packing = self.options.compression or self.survey.layers[like].compression
        return layer_writer(self.folder / name, packing, self.tailoring.workers, first, self.cutter.progress)

    @cached_property
    def used(self) -> tuple[str, ...]:
        """The files that the program used, in the order of their first use."""
        if not self.tailoring.workload:
            return ()
        files = [file.path for file in self.survey.view.visible()]
        return tuple(dict.fromkeys(self.tailoring.workload.in_order(files, self.survey.view.resolve)))

    def _write(self, number: int, changes: LayerChanges) -> WrittenLayer:
        here = [path for path in self.used if (file := self.survey.view.at(path)) and file.layer == number]
        new = (one.path for several in changes.added.values() for one in several if one.content is not None)
        first = (*here, *new) if self.used else ()
        layer = self.manifest.layers[number]
        self.cutter.progress.begin(f"Writing layer {number + 1}", layer.size)
        with (
            self._counted_pieces(number) as pieces,
            closing(ahead(UnpackedLayer(pieces, layer.size, self.where))) as unpacked,
            self._writer(f"new-{number}", number, first) as writer,
        ):
            return changes.write(unpacked, writer, self.where, self.cold)

    def _send_packs(self) -> None:
        """Store the packs of the artifact; of two layers with the same library, once."""
        while self.libraries.apart:
            file = self.libraries.apart.pop()
            if file.path not in self.packs:
                place = self.folder / "pack"
                self.packs[file.path] = pack = packed_cold(file, place, self.tailoring.workers)
                self.cutter.send_file(pack.blob, place)

    def _send_written(self, written: WrittenLayer) -> None:
        kind = layer_type(written.compression, docker=self.manifest.is_docker)
        self.cutter.send_file(Descriptor(kind, written.digest, written.size), written.path)

    # The new image

    def _new_documents(self, written: Sequence[WrittenLayer | _Estimate | None]) -> Document:
        if self.tailoring.dry_run:
            return self.manifest.document
        layers = []
        for number, new in enumerate(written):
            if isinstance(new, WrittenLayer):
                kind = layer_type(new.compression, docker=self.manifest.is_docker)
                row = Descriptor(kind, new.digest, new.size, annotations=dict(new.annotations or {}))
                layers.append(NewLayer(row, new.diff_id, new.compression))
            else:
                layers.append(NewLayer(self.manifest.layers[number], self.config.diff_ids[number]))
        words = {
            ANNOTATION_VERSION: __version__,
            ANNOTATION_SOURCE: self.manifest.document.descriptor.digest,
            ANNOTATION_GPUS: ",".join(str(gpu) for gpu in self.tailoring.targets.devices),
        }
        if self.packs:
            words[LABEL] = packs_label(self.packs.values())
        config = self.config.updated([layer.diff_id for layer in layers], self.options.line(), words)
        descriptor = replace_descriptor(self.manifest.config, config)
        if to := self.cutter.destination:
            to.put(descriptor, iter((config,)))
        notes = {**words, ANNOTATION_BASE: words[ANNOTATION_SOURCE], ANNOTATION_BASE_NAME: self.cutter.base}
        return new_manifest(self.manifest, descriptor, layers, notes, wants_oci=to is not None and to.wants_oci)

    def _result(self, written: Sequence[WrittenLayer | _Estimate | None]) -> ImageResult:
        files = self.survey.view.files
        hidden: dict[int, int] = {}
        left: dict[tuple[int, str], int] = {}
        for file in files:
            own = (file.layer, file.number)
            if own == file.content and own in self.dead:
                hidden[file.layer] = hidden.get(file.layer, 0) + file.size
            if why := self.left_out.get(own):
                left[(file.layer, why)] = left.get((file.layer, why), 0) + file.size
        rows = []
        for number, (layer, facts, made_by) in enumerate(
            zip(self.manifest.layers, self.survey.layers, self.config.created_by(), strict=True)
        ):
            new = written[number]
            row = LayerResult(
                number + 1,
                layer.digest,
                layer.size,
                facts.unpacked_size,
                facts.files,
                made_by,
                layer.digest,
                layer.size,
                facts.unpacked_size,
                hidden.get(number, 0),
                left.get((number, "shadowed"), 0),
                left.get((number, "rule"), 0),
                facts.compression.value,
            )
            if isinstance(new, WrittenLayer):
                row = replace(
                    row,
                    digest_after=new.digest,
                    size_after=new.size,
                    unpacked_after=new.unpacked_size,
                    packing=new.compression.value,
                )
            elif new is not None:
                row = replace(row, digest_after=None, size_after=None, unpacked_after=new.unpacked_size)
            rows.append(row)
        if len(written) > len(rows) and isinstance(last := written[-1], WrittenLayer):
            rows.append(LayerResult.of_packs(len(written), last, self.options.line()))
        chosen = (*default_rules(), *self.tailoring.drop)
        others = [name for name in drop_rules() if name not in chosen]
        droppable: dict[str, tuple[int, int]] = {}
        others_drop = Drops.of(others, self.tailoring.policy)
        by_rule = replace(self.tailoring, drop_unopened=False)
        for found in left_out_of(self.packages, by_rule, others_drop).files.values():
            number, size = droppable.get(found.rule, (0, 0))
            droppable[found.rule] = (number + 1, size + found.size)
        unchanged = not any(written)
        twice = tuple(_doubled(files))
        return ImageResult(
            self.config.platform,
            self.manifest.document.descriptor.digest,
            self.manifest.document.descriptor.digest if unchanged else None,
            tuple(rows),
            tuple(self._libraries()),
            tuple(self.dropped.values()),
            self.without.names,
            self.without.stand_ins,
            self.without.changed_requirements,
            tuple(made.index for made in self.indexes),
            tuple(made.caches for made in self.baked),
            droppable,
            twice[:_MOST_NAMED],
            sum(file.wasted for file in twice),
            (*self.packages.notes, *self.packages.debian_note(self._changed_paths())),
        )

    def _changed_paths(self) -> Iterator[str]:
        """The files in the end that are not the stock image's, or are gone."""
        yield from self.paths_left_out
        for content, result in self.libraries.results.items():
            if result.status.changed:
                yield from (file.path for file in self.libraries.names[content] if file.hidden_by is None)

    def _libraries(self) -> Iterator[ImageLibrary]:
        for content, result in sorted(self.libraries.results.items()):
            yield ImageLibrary(content[0] + 1, result, content in self.dead)
        for file, why in self.survey.unread:
            result = LibraryResult.not_read(LibraryStatus.SKIPPED, file.path, file.size, why)
            yield ImageLibrary(file.layer + 1, result, file.content in self.dead)


@dataclass(frozen=True, slots=True)
class _Estimate:
    """A layer that a dry run would write."""

    unpacked_size: int


def _staying(content: Content, files: Sequence[tuple[LayerFile, str]]) -> set[Content]:
    """Of the members that have the bytes of `content`, with why each would go, those that stay: what nothing leaves
    out, the bytes themselves, and what the links among them name."""
    stay = {(file.layer, file.number) for file, why in files if not why}
    if not stay:
        return stay
    stay.add(content)
    newest: dict[str, Content] = {}
    named: dict[Content, Content] = {}  # what each link leads to, which is always an earlier member
    for file, _ in files:
        own = (file.layer, file.number)
        if file.kind is MemberKind.HARD_LINK and file.link in newest:
            named[own] = newest[file.link]
        newest[file.path] = own
    for link, to in reversed(named.items()):
        if link in stay:
            stay.add(to)
    return stay


def _folders_above(paths: Iterable[str]) -> set[str]:
    return {parent.as_posix() for path in paths for parent in PurePosixPath(path).parents}


def _teed(pieces: Iterator[bytes], file: BinaryIO) -> Iterator[bytes]:
    for piece in pieces:
        file.write(piece)
        yield piece


def _doubled(files: Sequence[LayerFile]) -> Iterator[DoubledFile]:
    for group in doubled(files):
        layers = tuple(sorted({file.layer + 1 for file in group}))
        yield DoubledFile(group[0].path, group[0].size, layers)


def replace_descriptor(old: Descriptor, data: bytes) -> Descriptor:
    """A descriptor of other bytes."""
    return Descriptor(old.media_type, digest_of(data), len(data))
