"""Static package indexes: PEP 503 pages and PEP 691 JSON with hashes and metadata files; same input, same bytes."""

from __future__ import annotations

import hashlib
import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, UnsetType
from packaging.metadata import parse_email
from packaging.utils import canonicalize_name

from torchtailor.core.documents import plain
from torchtailor.core.trust import FileName, Label, Sha256, Size, decode_json

HTML_NAME = "index.html"
JSON_NAME = "index.json"
JSON_TYPE = "application/vnd.pypi.simple.v1+json"
HTML_TYPE = "text/html; charset=utf-8"
METADATA_SUFFIX = ".metadata"
_API_VERSION = "1.1"


class FileHashes(msgspec.Struct, frozen=True):
    """The hashes of a file."""

    sha256: Sha256


class FileRow(msgspec.Struct, frozen=True):
    """A file of a PEP 691 page."""

    filename: FileName
    url: str
    hashes: FileHashes
    size: Size
    yanked: Annotated[str | bool, Meta(description="why it should not be installed any more, or false")] = False
    requires_python: str | UnsetType = msgspec.field(name="requires-python", default=UNSET)
    metadata: FileHashes | UnsetType = msgspec.field(name="core-metadata", default=UNSET)
    metadata_as_before: FileHashes | UnsetType = msgspec.field(name="dist-info-metadata", default=UNSET)  # PEP 658

    @property
    def file(self) -> IndexedFile:
        return IndexedFile(
            filename=self.filename,
            url=self.url,
            sha256=self.hashes.sha256,
            size=self.size,
            requires_python=self.requires_python or "",
            metadata_sha256=self.metadata.sha256 if self.metadata else "",
            yanked=self.yanked if isinstance(self.yanked, str) else "",
        )


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file as an index shows it; `url` is relative to the project's page, or a whole address."""

    filename: str
    url: str
    sha256: str
    size: int
    requires_python: str = ""
    metadata_sha256: str = ""
    yanked: str = ""  # why it should not be installed any more (PEP 592): installers take it only where it is pinned

    @property
    def project(self) -> str:
        return canonicalize_name(self.filename.split("-")[0])

    @property
    def row(self) -> FileRow:
        metadata = FileHashes(self.metadata_sha256) if self.metadata_sha256 else UNSET
        python = self.requires_python or UNSET
        hashes = FileHashes(self.sha256)
        return FileRow(self.filename, self.url, hashes, self.size, self.yanked or False, python, metadata, metadata)

    def to_html(self) -> str:
        attributes = [f'href="{html.escape(self.url)}#sha256={html.escape(self.sha256)}"']
        if self.requires_python:
            attributes.append(f'data-requires-python="{html.escape(self.requires_python)}"')
        if self.metadata_sha256:
            metadata = html.escape(self.metadata_sha256)
            attributes.append(f'data-core-metadata="sha256={metadata}"')
            attributes.append(f'data-dist-info-metadata="sha256={metadata}"')
        if self.yanked:
            attributes.append(f'data-yanked="{html.escape(self.yanked)}"')
        return f"    <a {' '.join(attributes)}>{html.escape(self.filename)}</a><br/>"


def indexed(path: Path, sha256: str, metadata: bytes, folder: str) -> IndexedFile:
    """A wheel on disk as an index shows it; `folder` is where it lies, as seen from a project's page."""
    raw, _ = parse_email(metadata)
    return IndexedFile(
        filename=path.name,
        url=folder + quote(path.name),
        sha256=sha256,
        size=path.stat().st_size,
        requires_python=raw.get("requires_python", ""),
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
    )


def project_pages(project: str, files: Iterable[IndexedFile]) -> dict[str, bytes]:
    """The two pages of one project, by file name."""
    ordered = sorted(files, key=lambda file: file.filename)
    lines = "\n".join(file.to_html() for file in ordered)
    document = {
        "meta": {"api-version": _API_VERSION},
        "name": project,
        "versions": sorted({file.filename.split("-")[1] for file in ordered if file.filename.endswith(".whl")}),
        "files": plain([file.row for file in ordered]),
    }
    return {HTML_NAME: _page(f"Links for {project}", lines), JSON_NAME: _json(document)}


def root_pages(projects: Iterable[str]) -> dict[str, bytes]:
    """The two pages that list the projects."""
    names = sorted(set(projects))
    lines = "\n".join(f'    <a href="{html.escape(quote(name))}/">{html.escape(name)}</a><br/>' for name in names)
    document = {"meta": {"api-version": _API_VERSION}, "projects": [{"name": name} for name in names]}
    return {HTML_NAME: _page("Simple index", lines), JSON_NAME: _json(document)}


def index_pages(files: Sequence[IndexedFile]) -> dict[str, bytes]:
    """A whole index by relative path: the root's pages and every project's."""
    projects: dict[str, list[IndexedFile]] = {}
    for file in files:
        projects.setdefault(file.project, []).append(file)
    pages = dict(root_pages(projects))
    for name in sorted(projects):
        pages |= {f"{name}/{page}": content for page, content in project_pages(name, projects[name]).items()}
    return pages


class _ReadPage(msgspec.Struct):
    files: list[FileRow]


class _ReadName(msgspec.Struct):
    name: Label


class _ReadRoot(msgspec.Struct):
    projects: list[_ReadName]


_OURS = "Move it away, and publish again."


def read_project_json(content: bytes, name: str = "A page of the index") -> tuple[IndexedFile, ...]:
    """The files of a page written by `project_pages`, to be added to; `name` is what an error calls it."""
    return tuple(row.file for row in decode_json(content, _ReadPage, name, _OURS).files)


def read_root_json(content: bytes, name: str = "A page of the index") -> set[str]:
    """The projects of a page written by `root_pages`."""
    return {project.name for project in decode_json(content, _ReadRoot, name, _OURS).projects}


def read_targets(content: bytes, name: str) -> set[str]:
    """The list of the folders of a shared index."""
    return set(decode_json(content, list[Label], name, _OURS))


def _page(title: str, lines: str) -> bytes:
    return (
        "<!DOCTYPE html>\n<html>\n  <head>\n"
        f'    <meta name="pypi:repository-version" content="{_API_VERSION}">\n'
        f"    <title>{html.escape(title)}</title>\n  </head>\n  <body>\n{lines}\n  </body>\n</html>\n"
    ).encode()


def _json(document: Mapping[str, object]) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()
