"""Damaged files of every kind that torchtailor reads: a clear error, or a result that an independent reader accepts."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import json
import random
import shutil
import struct
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from tests.oracle import read_container, read_library, runnable
from tests.torture.harness import Torture
from tests.torture.mutations import damage_bytes, damage_json, damage_text
from tests.unit.fetch.packages import Package, json_page
from tests.unit.surgery.checks import options
from tests.unit.surgery.libraries import LOAD, PHDR
from tests.unit.surgery.test_fuzz import interesting, mutate, originals
from tests.unit.tailoring.helpers import install
from tests.unit.tailoring.helpers import options as tailor_options
from tests.unit.wheels.builder import build_wheel

FAT = (Path(__file__).parents[1] / "unit/gpucode/fixtures/raw.so").read_bytes()


_ELF_MAGIC = b"\x7fELF"
_OUTSIDE = b"a file that is no part of the wheelhouse"
_CONTAINER_MAGIC = bytes.fromhex("50ed55ba")


class Libraries(Torture):
    """Damaged ELF files through scan, plan, surgery and proof."""

    name = "elf"
    share = 0.6

    def prepare(self, folder: Path) -> None:
        self.stock = [(image, self.places(image)) for image in originals()]

    def places(self, image: bytes) -> list[int]:
        return interesting(image)

    def attempt(self, dice: random.Random, folder: Path) -> str:
        from torchtailor.surgery.library import tailor_library

        source, output = folder / "libfuzz.so", folder / "out.so"
        image = mutate(*dice.choice(self.stock), dice)
        source.write_bytes(image)
        targets = dice.choice(("9.0", "8.0", "8.6,12.0"))
        how: dict[str, Any] = {"recompress": dice.random() < 0.1, "level": 1, "image_cache": folder / "images"}
        try:
            result = tailor_library(source, output, options(targets, strip=dice.random() < 0.7, **how))
            assert output.exists() is result.status.changed
            if not result.status.changed:
                return result.status.value
            return check_library(source, output, targets)
        finally:
            assert source.read_bytes() == image, "the input was changed"
            output.unlink(missing_ok=True)
            left = {path.name for path in folder.iterdir()} - {source.name, "images", "cache", "state"}
            assert not left, f"left behind: {left}"


class Containers(Libraries):
    """The same with all damage in the containers of GPU code and the wrappers that lead to them."""

    name = "fatbin"
    share = 0.4

    def places(self, image: bytes) -> list[int]:
        found: list[int] = []
        for magic in (b"\x50\xed\x55\xba", b"\xb1\x43\x62\x46"):
            at = image.find(magic)
            while at >= 0:
                found += range(at, min(at + 16 + 3 * 64, len(image)))
                at = image.find(magic, at + 1)
        return found or interesting(image)


def check_library(stock: Path, cut: Path, targets: str) -> str:
    """By the reader of tests/oracle, and by the program headers alone."""
    mapped = _mapped(cut.read_bytes())
    try:
        before = read_library(stock)
    except (ValueError, struct.error, IndexError, OverflowError):
        return "cut, unreadable to others"
    if before.unread:
        return "cut, unreadable to others"
    image = stock.read_bytes()
    spans = [(one.offset, one.offset + one.size) for one in before.containers]
    bare = [(one.offset, one.offset + one.size) for one in before.containers if one.form == "cubin"]
    if any(image.find(_ELF_MAGIC, start + 1, end) >= 0 for start, end in bare):
        return "cut, read in another way"  # a damaged size: this reader takes several cubins for one
    _check_mapped(image, spans, mapped)
    after = read_library(cut)
    for target in targets.split(","):
        device = (int(target.split(".")[0]), int(target.split(".")[1]))
        try:
            was = {(runs.kernel, runs.how, runs.code) for runs in runnable(before, device)}
        except Exception:  # code that is damaged cannot be read, and stays as it is
            return "cut, with damaged code"
        lost = was - {(runs.kernel, runs.how, runs.code) for runs in runnable(after, device)}
        if lost and len(before.containers) != len(after.containers):
            return "cut, read in another way"  # damage that begins like code hides what is behind it from this reader
        assert not lost, f"{target} lost {sorted(lost)[:2]}"
    return "cut"


def _mapped(image: bytes) -> list[tuple[int, int]]:
    (table,), (count,) = struct.unpack_from("<Q", image, 32), struct.unpack_from("<H", image, 56)
    rows = [PHDR.unpack_from(image, table + PHDR.size * index) for index in range(count)]
    return sorted((row[3], row[3] + row[6]) for row in rows if row[0] == LOAD)


def _check_mapped(image: bytes, containers: list[tuple[int, int]], mapped: list[tuple[int, int]]) -> None:
    """Every byte of the stock file that is loaded and is not GPU code is still at its address."""
    (table,), (count,) = struct.unpack_from("<Q", image, 32), struct.unpack_from("<H", image, 56)
    for index in range(count):
        kind, _, offset, address, _, in_file, in_memory, _ = PHDR.unpack_from(image, table + PHDR.size * index)
        if kind != LOAD:
            continue
        edges = {address, address + in_memory - 1}
        for start, end in containers:
            edges |= {at - offset + address for at in (start - 1, end) if offset <= at < offset + in_file}
        for edge in edges:
            inside = any(start <= edge - address + offset < end for start, end in containers)
            at = edge - address + offset
            if image[at : at + 4] == _CONTAINER_MAGIC:
                continue  # code, though too damaged for the reader
            if in_memory and not inside and image[edge - address + offset : edge - address + offset + 1] != b"\0":
                assert any(start <= edge < end for start, end in mapped), f"{edge:#x} is not mapped any more"


class Wheels(Torture):
    """Damaged wheels through `inspect` and `tailor`."""

    name = "wheels"
    share = 0.06

    def prepare(self, folder: Path) -> None:
        files = {"torch/version.py": b"__version__ = '2.10.0+cu128'\n", "torch/lib/libx.so": FAT, "torch/a.py": b"1\n"}
        (folder / "in").mkdir()
        self.wheel = build_wheel(folder / "in", files, name="torch", version="2.10.0")
        self.data = self.wheel.read_bytes()
        self.central = self.data.rfind(b"PK\x01\x02", 0, self.data.find(b"PK\x01\x02") + 4)

    def attempt(self, dice: random.Random, folder: Path) -> str:
        from torchtailor.tailoring.wheel import tailor_wheel
        from torchtailor.verification.inspection.inspect import inspect

        if dice.random() < 0.5:  # the table, where every lie is
            data = self.data[: self.central] + damage_bytes(self.data[self.central :], dice)
        else:
            data = damage_bytes(self.data, dice)
        self.wheel.write_bytes(data)
        out = folder / "out"
        try:
            if dice.random() < 0.3:
                inspect(self.wheel)
            result = tailor_wheel(self.wheel, out, tailor_options(processes=1))
            if result.output is None:
                return "no output"
            check_wheel(result.output)
            return "cut" if result.changed else "copied"
        finally:
            assert self.wheel.read_bytes() == data, "the input was changed"
            assert not list(folder.glob(".torchtailor-*")), "left behind"
            shutil.rmtree(out, ignore_errors=True)


def check_wheel(path: Path) -> None:
    """By Python's zipfile and csv alone: all files are listed, with their hashes."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = [name for name in archive.namelist() if not name.endswith("/")]
        (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
        rows = {row[0]: row for row in csv.reader(io.StringIO(archive.read(record).decode())) if row}
        for name in names:
            digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
            if name != record and rows.get(name, ["", "", ""])[1].startswith("sha256="):
                assert rows[name][1] == f"sha256={digest}", f"{name} is not what RECORD lists"


class IndexAnswers(Torture):
    """Pages and metadata of an index that lies."""

    name = "index answers"
    share = 0.1

    def prepare(self, folder: Path) -> None:
        from torchtailor.fetch.locations import IndexLocation, LocationKind

        self.source = IndexLocation("https://index/simple", LocationKind.INDEX, "test")
        packages = [
            Package("torch", version, ("numpy>=1; os_name == 'posix'",)) for version in ("2.8.0", "2.9.0+cu128")
        ]
        self.json = json_page(packages)
        links = "".join(
            f'<a href="../../files/{one.filename}#sha256={"0" * 64}" data-requires-python="&gt;=3.9" '
            f'data-core-metadata="sha256={"1" * 64}">{one.filename}</a><br>\n'
            for one in packages
        )
        self.html = f'<!DOCTYPE html><html><base href="https://files/"><!-- x --><body>{links}</body></html>'
        self.metadata = packages[0].metadata.decode()

    def attempt(self, dice: random.Random, folder: Path) -> str:
        from torchtailor.fetch.cache import Cache
        from torchtailor.fetch.metadata import Facts
        from torchtailor.fetch.pages import JSON_TYPE, parse_page
        from torchtailor.fetch.resolve import needs
        from torchtailor.fetch.target import Target

        url = "https://index/simple/torch/"
        kind = dice.choice(("json", "json", "html", "metadata"))
        if kind == "metadata":
            facts = Facts(damage_text(self.metadata, dice), 1)
            list(needs(facts, Target("3.13", "x86_64")))
            return kind
        body = damage_json(self.json, dice) if kind == "json" else damage_text(self.html.replace(">", ">\n"), dice)
        files = parse_page(body, JSON_TYPE if kind == "json" else "text/html", url, self.source)
        cache = Cache(folder / "cache")
        for file in files:
            assert "/" not in file.filename and file.filename.endswith(".whl")
            assert file.sha256 is None or len(bytes.fromhex(file.sha256)) == 32
            assert "secret" not in file.shown
            assert file.sha256 is None or cache.find(file.sha256, file.filename) is None
        return f"{kind}, {'some' if files else 'no'} wheels"


class Journals(Torture):
    """Damaged journals and kept bytes of an environment, through `restore`."""

    name = "journals"
    share = 0.04

    def prepare(self, folder: Path) -> None:
        from torchtailor.tailoring.environment import tailor_environment

        self.site = folder / "env/lib/python3.13/site-packages"
        wheel = build_wheel(
            folder, {"torch/__init__.py": b"", "torch/lib/libx.so": FAT}, name="torch", version="2.10.0"
        )
        install(wheel, self.site)
        tailor_environment(self.site, tailor_options(keep_removed=True, processes=1))
        self.cut = (self.site / "torch/lib/libx.so").read_bytes()
        self.copy = shutil.copytree(folder / "env", folder / "copy")
        self.victim = folder / "victim"
        self.victim.write_bytes(self.cut)

    def attempt(self, dice: random.Random, folder: Path) -> str:
        from torchtailor.tailoring.restore import restore_environment

        shutil.rmtree(folder / "env")
        shutil.copytree(self.copy, folder / "env")
        state = self.site / ".torchtailor"
        if dice.random() < 0.7:
            lines = (state / "journal.jsonl").read_bytes().splitlines()
            (state / "journal.jsonl").write_bytes(b"".join(damage_json(line, dice) + b"\n" for line in lines))
        else:
            kept = next((state / "removed").iterdir())
            kept.write_bytes(damage_bytes(kept.read_bytes(), dice))
        try:
            found = restore_environment(self.site)
            return "restored" if found.libraries else "nothing to restore"
        finally:
            assert self.victim.read_bytes() == self.cut, "a file outside was changed"
            assert (self.site / "torch/lib/libx.so").read_bytes() in (FAT, self.cut), "a library is neither"
            outside = {path.name for path in folder.iterdir()} - {"env", "copy", "victim", "cache", "state"}
            assert all(name.endswith(".whl") for name in outside), f"left behind: {outside}"


class Manifests(Torture):
    """Damaged wheelhouses, through `publish`."""

    name = "manifests"
    share = 0.04

    def prepare(self, folder: Path) -> None:
        from torchtailor.trees.index.pages import index_pages
        from torchtailor.wheelhouse.wheelhouse import add_metadata, write_pages

        house = self.house = folder / "dist" / "variant"
        (house / "wheels").mkdir(parents=True)
        wheel = build_wheel(house / "wheels", {"torch/lib/libx.so": FAT}, name="torch", version="2.10.0")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        write_pages(index_pages([add_metadata(wheel, digest)]), house / "simple")
        file = {"filename": wheel.name, "sha256": digest, "size": wheel.stat().st_size, "url": "https://host/x.whl"}
        document = {
            "variant": "pytorch210-python313-cuda12_8-sm90-avx2",
            "target": {"gpu": "9.0", "python": "3.13", "arch": "x86_64"},
            "pytorch": {"build": "cu128"},
            "requirements": ["torch==2.10.0"],
            "wheels": [{"output": file, "input": file, "step": "cut", "name": "torch"}],
            "totals": {"input_bytes": 5, "output_bytes": 4},
        }
        (house / "manifest.json").write_text(json.dumps(document))
        (folder / "victim").write_bytes(_OUTSIDE)
        self.files = {path: path.read_bytes() for path in (house / "manifest.json", *house.rglob("index.json"))}

    def attempt(self, dice: random.Random, folder: Path) -> str:
        from torchtailor.core.store import FolderStore
        from torchtailor.fetch.cache import Cache
        from torchtailor.publish.publish import publish

        for path, data in self.files.items():
            path.write_bytes(data)
        chosen = dice.choice([*self.files])
        chosen.write_bytes(damage_json(self.files[chosen], dice))
        public = folder / "deep" / "public"
        try:
            publish(folder / "dist", FolderStore(public), cache=Cache(folder / "cache"))
            check_index(public)
            return "published"
        finally:
            stolen = [path for path in public.rglob("*") if path.is_file() and _OUTSIDE in path.read_bytes()]
            shutil.rmtree(folder / "deep", ignore_errors=True)  # before any check: the next case begins anew
            assert not stolen, f"a file from outside was published: {stolen}"
            outside = {path.name for path in folder.iterdir()} - {"dist", "deep", "victim", "cache", "state"}
            assert not outside, f"left behind: {outside}"


def check_index(root: Path) -> None:
    """By the pages alone: every file that one lists is there, with its hash."""
    from urllib.parse import unquote

    for page in root.rglob("index.json"):
        for file in json.loads(page.read_bytes()).get("files", []):
            if not file["url"].startswith("http"):
                place = page.parent / unquote(file["url"])
                assert place.resolve().is_relative_to(root.resolve())
                assert hashlib.sha256(place.read_bytes()).hexdigest() == file["hashes"]["sha256"]
    for page in root.rglob("index.html"):
        ours = 1 if page.parent == root else 0  # the front page has a script of its own
        assert page.read_bytes().lower().count(b"<script") == ours


class Traces(Torture):
    """Damaged traces through `trace show` and `tailor --workload`, and records through `trace merge`."""

    name = "traces"
    share = 0.02

    def prepare(self, folder: Path) -> None:
        from torchtailor.surgery.hooked import hookable
        from torchtailor.workload.events import make_trace, read_events

        fixtures = Path(__file__).parents[1] / "unit/gpucode/fixtures"
        self.libraries = [path for path in sorted(fixtures.glob("*.so")) if self._hookable(path, hookable)]
        assert self.libraries
        self.records, self.traces = [], []
        for library in self.libraries:
            loads = [f"load\t{library}\t{address:x}\t10\n" for address in self._addresses(library)]
            opened = "open\t/env/lib/python3.13/site-packages/torch/lib/libx.so\n"
            self.records.append(f"proc\t1\t/usr/bin/python3\n{opened}{''.join(loads[::2])}".encode())
            (folder / "record.tsv").write_bytes(self.records[-1])
            self.traces.append(make_trace(read_events([folder / "record.tsv"]), ["python a.py"]).to_bytes())

    def _hookable(self, path: Path, check: Any) -> bool:
        from torchtailor.code.binary.elf import ElfFile
        from torchtailor.code.binary.source import open_source

        with open_source(path) as source:
            return bool(check(ElfFile(source)))

    def _addresses(self, path: Path) -> list[int]:
        from torchtailor.code.gpucode.scan import scan_file

        return [one.address for one in scan_file(path).containers if one.loaded and one.address is not None]

    def attempt(self, dice: random.Random, folder: Path) -> str:
        from torchtailor.cli.record import show
        from torchtailor.tailoring.folder import tailor_file
        from torchtailor.workload.choice import TracedWorkload
        from torchtailor.workload.record import trace_of
        from torchtailor.workload.trace import read_trace, write_trace

        at = dice.randrange(len(self.libraries))
        place, library, out = folder / "a.trace", self.libraries[at], folder / "out"
        try:
            if dice.random() < 0.3:
                (folder / "record.tsv").write_bytes(damage_bytes(self.records[at], dice))
                write_trace(place, trace_of([folder / "record.tsv"]))
                trace = read_trace(place)  # what is written can always be read
            else:
                place.write_bytes(damage_json(self.traces[at], dice))
                trace = read_trace(place)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                show(trace, "a.trace", json=dice.random() < 0.5)
            margin = dice.choice(("exact", "library"))
            chosen = tailor_options(workload=TracedWorkload(trace, margin), drop_unopened=True, processes=1)
            assert chosen.workload is not None
            chosen.workload.unopened({"torch/lib/libx.so": 1 << 20, "torch/a.h": 1})
            result = tailor_file(library, out / library.name, chosen)
            (cut,) = result.libraries
            if not cut.status.changed:
                return "shown"
            check_moved(library, out, (9, 0))
            return "cut, with a pack" if cut.pack else "cut"
        finally:
            shutil.rmtree(out, ignore_errors=True)
            left = {path.name for path in folder.iterdir()} - {"a.trace", "record.tsv", "cache", "state"}
            assert not left, f"left behind: {left}"


def check_moved(stock: Path, folder: Path, device: tuple[int, int]) -> None:
    """By the reader of tests/oracle and the format of packs alone: library and packs have what the GPU runs of the
    stock library, and each empty container's key is one of a pack."""
    before, after = read_library(stock), read_library(folder / stock.name)
    left = {one.id: one for one in after.containers}
    whole = stock.read_bytes()
    packed: dict[bytes, Any] = {}
    for path in (folder / "torchtailor-packs").glob("*.ttpack"):
        data = path.read_bytes()
        (count,), (rows,) = struct.unpack_from("<I", data, 12), struct.unpack_from("<Q", data, 16)
        for index in range(count):
            key, start, size = struct.unpack_from("<16sQQ", data, rows + 40 * index)
            packed[key] = (path, start, size)
    containers = []
    for one in before.containers:
        key = hashlib.blake2b(whole[one.offset : one.offset + one.size], digest_size=16).digest()
        if key in packed:
            path, start, size = packed[key]
            assert not left[one.id].entries, "code is both in the library and in a pack"
            containers.append(replace(one, entries=read_container(path, start, size)))
        else:
            containers.append(left.get(one.id, one))
    together = replace(after, containers=tuple(containers))
    was, now = ({(runs.kernel, runs.how, runs.code) for runs in runnable(one, device)} for one in (before, together))
    assert was == now, f"lost {sorted(was - now)[:2]}, new {sorted(now - was)[:2]}"


class Configuration(Torture):
    """Damaged configuration files of torchtailor, pip and uv, descriptions of machines, and logs."""

    name = "configuration"
    share = 0.06

    def prepare(self, folder: Path) -> None:
        machines = sorted((Path(__file__).parents[1] / "machines").glob("*.json"))
        self.machines = [path.read_bytes() for path in machines[:20]]
        self.logs = [path.read_bytes() for path in sorted((Path(__file__).parents[1] / "unit/failures/logs").iterdir())]

    def attempt(self, dice: random.Random, folder: Path) -> str:
        kind = dice.choice(("torchtailor.toml", "pip.conf", "uv.toml", "machine", "log"))
        {
            "torchtailor.toml": self._own,
            "pip.conf": self._pip,
            "uv.toml": self._uv,
            "machine": self._machine,
            "log": self._log,
        }[kind](dice, folder)
        return kind

    def _own(self, dice: random.Random, folder: Path) -> None:
        from torchtailor.catalog import load_catalog

        (folder / "torchtailor.toml").write_bytes(damage_text(OWN, dice))
        try:
            load_catalog(folder)
        finally:
            (folder / "torchtailor.toml").unlink()

    def _pip(self, dice: random.Random, folder: Path) -> None:
        self._settings("PIP_CONFIG_FILE", PIP, dice, folder)

    def _uv(self, dice: random.Random, folder: Path) -> None:
        self._settings("UV_CONFIG_FILE", UV, dice, folder)

    def _settings(self, variable: str, text: str, dice: random.Random, folder: Path) -> None:
        from torchtailor.core.errors import TorchtailorError
        from torchtailor.fetch.client import Client
        from torchtailor.fetch.settings import read_settings

        path = folder / "settings"
        path.write_bytes(damage_text(text, dice))
        try:
            found = read_settings(environment={variable: str(path), "HOME": str(folder)}, directory=folder)
            for source in found.sources:
                parts = urlsplit(source.shown)
                # The damage may have moved it behind a host, where it is no password but a path.
                moved = parts.netloc and "secret" not in parts.netloc
                assert moved or "secret" not in source.shown, source
            Client(found)._pool("https://host/")
        except TorchtailorError as error:
            assert "secret" not in error.message + error.hint, error.message
            raise
        finally:
            path.unlink()

    def _machine(self, dice: random.Random, folder: Path) -> None:
        from torchtailor.advise.host.probe import Recording
        from torchtailor.advise.host.store import loads

        data = damage_json(dice.choice(self.machines), dice)
        with contextlib.suppress(msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            msgspec.json.decode(data, type=Recording)
        msgspec.json.encode(loads(data, "machine.json"))

    def _log(self, dice: random.Random, folder: Path) -> None:
        from torchtailor.verification.failures.diagnosis import diagnose

        diagnose(io.BytesIO(damage_bytes(dice.choice(self.logs), dice)))


OWN = """
[tailor]
nvidia = true
[[gpu]]
capability = "9.9"
name = "Test"
products = ["RTX 9999"]
[[release]]
version = "2.99.0"
python = ["3.13"]
"""
PIP = """
[global]
index-url = https://user:secret@host/simple
extra-index-url = https://other/simple
find-links = /wheels
timeout = 15
retries = 5
proxy = http://user:secret@proxy:3128
trusted-host = host
[install]
no-index = false
"""
UV = """
offline = false
index-url = "https://user:secret@host/simple"
extra-index-url = ["https://other/simple"]
find-links = ["/wheels"]
[[index]]
name = "own"
url = "https://host/own"
default = true
[pip]
no-index = false
"""

INPUTS: tuple[type[Torture], ...] = (
    Libraries,
    Containers,
    Wheels,
    IndexAnswers,
    Journals,
    Manifests,
    Traces,
    Configuration,
)
