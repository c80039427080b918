"""OCI image layouts: `index.json`, `oci-layout` and `blobs/`, in a folder or anywhere else that has names and bytes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec

from torchtailor.core.disk import (
    copy_file,
    disk_errors,
    hash_file,
    is_own_folder,
    link_or_copy,
    locked_folder,
    new_file,
    staging_folder,
    write_atomically,
)
from torchtailor.core.errors import BadInputError, NoMatchError, UsageError
from torchtailor.core.shapes import shaped
from torchtailor.core.trust import decode_json
from torchtailor.oci.descriptor import Descriptor, MediaType
from torchtailor.oci.manifests import MANIFEST_LIMIT, check_document, require_oci
from torchtailor.oci.reference import ImageReference
from torchtailor.oci.referrers import COSIGN_TAGS, Proofs, Referrer, listed_in, row_if_of, tag_of
from torchtailor.oci.transports.base import Document, ImageSource
from torchtailor.oci.transports.content import (
    checked,
    file_pieces,
    join_pieces,
    open_plain,
    read_document,
    reading,
    short,
)

INDEX = "index.json"
LAYOUT = "oci-layout"
LAYOUT_CONTENT = b'{"imageLayoutVersion":"1.0.0"}'
REF_NAME = "org.opencontainers.image.ref.name"
_AGAIN = "Fetch or build the image again."
_TEMPORARY = ".torchtailor-"
_LISTED = 10


class LayoutFiles(Protocol):
    """The files of a layout, by their names in it."""

    def size(self, name: str) -> int | None:
        """None where there is no such file."""

    def pieces(self, name: str) -> AbstractContextManager[Iterator[bytes]]: ...

    def path(self, name: str) -> Path | None:
        """Where the file lies by itself, if it does."""

    def close(self) -> None: ...


class FolderFiles:
    """The files of a layout that is a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def size(self, name: str) -> int | None:
        path = self._folder / name
        with reading(str(path)):
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    @contextmanager
    def pieces(self, name: str) -> Iterator[Iterator[bytes]]:
        path = self._folder / name
        with reading(str(path)):
            file = open_plain(path)
        with file:
            yield file_pieces(file, str(path))

    def path(self, name: str) -> Path | None:
        return (self._folder / name).resolve()

    def close(self) -> None:
        pass


class OciSource:
    """An image of an OCI layout, in a folder or an archive."""

    is_remote = False

    def __init__(self, reference: ImageReference, files: LayoutFiles) -> None:
        self._reference, self._files = reference, files
        self._whole: set[str] = set()  # digests of blobs that were read and found right

    @property
    def name(self) -> str:
        return str(self._reference)

    @property
    def stored_name(self) -> str | None:
        """The name that the layout has for the image, also where it was asked for without one."""
        return (self._chosen().annotations or {}).get(REF_NAME)

    def root(self) -> Document:
        return self.document(self._chosen())

    def document(self, descriptor: Descriptor) -> Document:
        with self._opened(descriptor) as pieces:
            return check_document(read_document(pieces, descriptor, self.name), descriptor, self.name)

    @contextmanager
    def blob(self, descriptor: Descriptor) -> Iterator[Iterator[bytes]]:
        with self._opened(descriptor) as pieces:
            yield self._noted(checked(pieces, descriptor, self.name), descriptor)

    def blob_file(self, descriptor: Descriptor) -> Path | None:
        """Where the blob lies as a file of its own, if its bytes are known to be right or can be found so."""
        path = self._files.path(blob_name(descriptor))
        if path is None or self._files.size(blob_name(descriptor)) != descriptor.size:
            return None
        if descriptor.digest not in self._whole:
            with self.blob(descriptor) as pieces:
                for _ in pieces:
                    pass
        return path

    def referrers(self, descriptor: Descriptor) -> tuple[Mapping[str, Any], ...]:
        entries = self._entries()
        listing = _by_name(entries).get(tag_of(descriptor))
        rows: list[Mapping[str, Any]] = []
        for entry in entries:
            if entry is not listing and entry.media_type != MediaType.OCI_MANIFEST.value:
                continue
            with suppress(BadInputError):  # of another image: that is not what was asked for
                document = self.document(entry)
                row = row_if_of(descriptor, document)
                rows += listed_in(document, self.name) if entry is listing else [row] if row else []
        return tuple(rows)

    def proofs(self, descriptor: Descriptor) -> Proofs:
        tag, names = tag_of(descriptor), _by_name(self._entries())
        rows = self.referrers(descriptor)
        return Proofs.of(rows) + Proofs.of_tags(end for end in COSIGN_TAGS if tag + end in names)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def _noted(self, pieces: Iterator[bytes], descriptor: Descriptor) -> Iterator[bytes]:
        yield from pieces
        self._whole.add(descriptor.digest)

    def _opened(self, descriptor: Descriptor) -> AbstractContextManager[Iterator[bytes]]:
        size = self._files.size(blob_name(descriptor))
        if size is None:
            elsewhere = " (its manifest names other places for it, which are never asked)" if descriptor.urls else ""
            raise BadInputError(f"{self.name} lacks the blob {short(descriptor)}{elsewhere}.", _AGAIN)
        if size != descriptor.size:
            raise BadInputError(
                f"{short(descriptor)} of {self.name} has {size} bytes instead of {descriptor.size}.", _AGAIN
            )
        return self._files.pieces(blob_name(descriptor))

    def _chosen(self) -> Descriptor:
        entries = self._entries()
        wanted, position = self._reference.ref, self._reference.position
        if position is not None:
            if position >= len(entries):
                raise NoMatchError(f"{self.name} does not exist: there are {len(entries)} images.", "Count from @0.")
            return entries[position]
        names = [(entry.annotations or {}).get(REF_NAME, "") for entry in entries]
        found = [
            entry
            for entry, name in zip(entries, names, strict=True)
            if name == wanted or (wanted is None and not entry.artifact_type)
        ]
        if len({entry.digest for entry in found}) == 1:
            return found[0]
        shown = ", ".join(sorted({name for name in names if name})[:_LISTED])
        if found:
            raise NoMatchError(
                f"{self.name} could be {len(found)} images.",
                f"Add one of these names: {shown}." if shown and not wanted else "Add its position: @0, @1, ...",
            )
        hint = f"It holds: {shown}." if shown else "It holds no image that has a name."
        raise NoMatchError(f"There is no image {self.name}.", hint)

    def _entries(self) -> Sequence[Descriptor]:
        if self._files.size(INDEX) is None or self._files.size(LAYOUT) is None:
            place = str(self._reference.path)
            if not self._reference.is_pipe and not os.path.lexists(place):
                raise NoMatchError(f"{place} does not exist.", "Check the path.")
            raise BadInputError(f"{self.name} is not an OCI layout: {INDEX} or {LAYOUT} is missing.", _AGAIN)
        with self._files.pieces(INDEX) as pieces:
            data = join_pieces(pieces, MANIFEST_LIMIT, self.name)
        return decode_json(data, _Index, f"{INDEX} of {self.name}", _AGAIN).manifests


class _Index(msgspec.Struct):
    manifests: tuple[Descriptor, ...] = ()


def blob_name(descriptor: Descriptor) -> str:
    """The name of a blob in a layout."""
    return f"blobs/{descriptor.algorithm}/{descriptor.hex}"


def index_entry(root: Document, annotations: dict[str, str]) -> bytes:
    """The line of an index.json for an image."""
    found = root.descriptor
    return msgspec.json.encode(Descriptor(found.media_type, found.digest, found.size, annotations=annotations or None))


def new_index(entries: Sequence[bytes]) -> bytes:
    """An index.json that holds these entries alone."""
    return _encode({"schemaVersion": msgspec.Raw(b"2")}, entries)


def _encode(around: dict[str, msgspec.Raw], entries: Sequence[bytes]) -> bytes:
    listed = msgspec.Raw(b"[" + b",".join(entries) + b"]")
    return msgspec.json.encode(around | {"manifests": listed})


class OciFolderSource(OciSource):
    """An image of an OCI layout that is a folder."""

    def __init__(self, reference: ImageReference) -> None:
        assert reference.path is not None
        super().__init__(reference, FolderFiles(reference.path))


class OciFolderDestination:
    """An OCI layout that is a folder. Blobs wait in a folder beside it and get their names when the image does."""

    is_local = True
    takes_index = True
    takes_referrers = True
    wants_oci = True

    def __init__(self, reference: ImageReference) -> None:
        assert reference.path is not None
        if reference.position is not None:
            raise UsageError(f"{reference} is a position, which only an image that exists has.", "Give it a name.")
        self._reference, self._folder = reference, reference.path
        self._referrers: list[Referrer] = []
        self._staged: dict[str, Path] = {}
        self._there: set[str] = set()  # digests of blobs that were read and found right
        self._stack = ExitStack()
        self._made: list[Path] = []
        self._staging: Path | None = None

    @property
    def name(self) -> str:
        return str(self._reference)

    @property
    def staging(self) -> Path:
        assert self._staging is not None
        return self._staging

    def __enter__(self) -> Self:
        with disk_errors(self._folder):
            self._check_place()
            self._made = [one for one in (self._folder, *self._folder.absolute().parents) if not one.exists()]
            self._staging = self._stack.enter_context(staging_folder(self._folder))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        with suppress(OSError):  # empty ones alone: where nothing was committed
            for folder in self._made:
                folder.rmdir()

    def has(self, descriptor: Descriptor) -> bool:
        """Whether it is staged, or there with all its bytes: one that is damaged is written anew."""
        if descriptor.digest in self._staged or descriptor.digest in self._there:
            return True
        path = self._folder / blob_name(descriptor)
        if not path.is_symlink() and FolderFiles(self._folder).size(blob_name(descriptor)) == descriptor.size:
            with suppress(OSError), open_plain(path) as file:
                if hash_file(file.fileno(), descriptor.algorithm) == descriptor.hex:
                    self._there.add(descriptor.digest)
        return descriptor.digest in self._there

    def take(self, descriptor: Descriptor, source: ImageSource) -> bool:
        """A link costs less than to read what is there."""
        if descriptor.digest in self._staged or descriptor.digest in self._there:
            return True
        if not isinstance(source, OciSource) or (path := source.blob_file(descriptor)) is None:
            return self.has(descriptor)
        with disk_errors(self._folder):
            link_or_copy(path, self._place(descriptor))
        self._staged[descriptor.digest] = self._place(descriptor)
        return True

    def put(self, descriptor: Descriptor, chunks: Iterator[bytes]) -> None:
        place = self._place(descriptor)
        with disk_errors(self._folder), new_file(place) as file:
            for piece in checked(chunks, descriptor, self.name):
                file.write(piece)
        self._staged[descriptor.digest] = place

    def put_file(self, descriptor: Descriptor, path: Path) -> None:
        if path.stat().st_size != descriptor.size:
            raise BadInputError(f"{path} does not have the {descriptor.size} bytes of {short(descriptor)}.")
        place = self._place(descriptor)
        with disk_errors(self._folder):
            try:
                path.rename(place)
            except OSError:  # on another disk
                copy_file(path, place)
            place.chmod(0o666 & self._folder.stat().st_mode)
        self._staged[descriptor.digest] = place

    def put_document(self, document: Document) -> None:
        require_oci(document, self.name)
        self.put(document.descriptor, iter((document.data,)))

    def attach(self, referrer: Referrer) -> None:
        for blob, data in referrer.blobs:
            if not self.has(blob):
                self.put(blob, iter((data,)))
        self.put_document(referrer.document)
        self._referrers.append(referrer)

    def commit(self, root: Document) -> None:
        self.put_document(root)
        with disk_errors(self._folder), locked_folder(self._folder):
            if not (
                self._folder / LAYOUT
            ).exists():  # the first thing, so that nobody takes the rest for something else
                write_atomically(self._folder / LAYOUT, LAYOUT_CONTENT, staging=self.staging)
            for digest, staged in self._staged.items():
                place = self._folder / "blobs" / digest.replace(":", "/")
                _check_folders(place)
                place.parent.mkdir(parents=True, exist_ok=True)
                staged.replace(place)
            self._staged.clear()
            write_atomically(self._folder / INDEX, self._index_with(root), staging=self.staging, durable=True)

    def _place(self, descriptor: Descriptor) -> Path:
        return self.staging / f"{descriptor.algorithm}-{descriptor.hex}"

    def _check_place(self) -> None:
        folder = self._folder
        if not os.path.lexists(folder):
            return
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder.", "Give the name of a new folder, or of an OCI layout.")
        with reading(str(folder)):
            holds = any(not path.name.startswith(_TEMPORARY) for path in folder.iterdir())
        if holds and not (folder / LAYOUT).is_file():
            raise UsageError(
                f"{folder} holds something that is not an OCI layout.", "Give the name of a new folder, or of a layout."
            )
        for algorithm in ("sha256", "sha512"):
            _check_folders(folder / "blobs" / algorithm / "x")
        self._old_index()  # a damaged one is found before the work, not after it

    def _old_index(self) -> tuple[dict[str, msgspec.Raw], list[msgspec.Raw]]:
        """All that is there, byte for byte: what others wrote is theirs."""
        files = FolderFiles(self._folder)
        if files.size(INDEX) is None:
            return {"schemaVersion": msgspec.Raw(b"2")}, []
        with files.pieces(INDEX) as pieces:
            data = join_pieces(pieces, MANIFEST_LIMIT, self.name)
        around = decode_json(data, dict[str, msgspec.Raw], f"{INDEX} of {self._folder}", _AGAIN)
        listed = around.get("manifests")
        entries: list[msgspec.Raw] = (
            decode_json(bytes(listed), list[msgspec.Raw], f"{INDEX} of {self._folder}", _AGAIN) if listed else []
        )
        return around, entries

    def _index_with(self, root: Document) -> bytes:
        """The index with the image in the place of that of the same name (or of the one without a name)."""
        around, entries = self._old_index()
        name = self._reference.ref
        attached = [msgspec.json.encode(referrer.row) for referrer in self._referrers]
        kept = [
            bytes(entry)
            for entry in entries
            if (_name_of(entry) != name or _is_referrer(entry)) and bytes(entry) not in attached
        ]
        return _encode(around, [*kept, index_entry(root, {REF_NAME: name} if name else {}), *attached])


def _check_folders(blob: Path) -> None:
    """Refuse a link of somebody else in the place of a folder of blobs: what is written there would go elsewhere."""
    for folder in (blob.parents[1], blob.parent):
        if os.path.lexists(folder) and not is_own_folder(folder, may_link=True):
            raise BadInputError(f"{folder} is not a folder, or a link of another user.", "Give another place.")


def _by_name(entries: Sequence[Descriptor]) -> dict[str, Descriptor]:
    return {(entry.annotations or {}).get(REF_NAME, ""): entry for entry in entries}


def _is_referrer(entry: msgspec.Raw) -> bool:
    """Whether an entry without a name is attached to an image, and is no image."""
    try:
        return bool(msgspec.json.decode(entry, type=shaped(Descriptor)).artifact_type)
    except (msgspec.MsgspecError, BadInputError, RecursionError):
        return False


def _name_of(entry: msgspec.Raw) -> str | None:
    """The name of an image in an index; what cannot be read has a name that nobody asks for."""
    try:
        found: Any = msgspec.json.decode(entry)
        annotations = found.get("annotations") or {}
        name = annotations.get(REF_NAME)
    except (msgspec.MsgspecError, AttributeError, RecursionError):
        return "\0"
    return str(name) if name else None
