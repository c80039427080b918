"""What whoever can write to the store of a farm can do to it: damage, and forge what jobs have made.

A forged store agrees with itself: blobs have the hashes that records, pages and manifests name. Only what is signed or
what the index listed tells it from a real one.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from tests.torture.harness import Torture
from tests.unit.building.conftest import Workshop
from tests.unit.building.stack import fill
from tests.unit.building.test_build import tree
from tests.unit.fetch.serving import Site, serve
from torchtailor.core.errors import TorchtailorError

EVIL = b"import os  # of somebody else\n"


class StoreFiles:
    """The records and blobs of a store in a folder, as somebody sees them who knows nothing of torchtailor's code."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def blobs(self) -> list[Path]:
        return sorted((self.root / "blobs").glob("*/*"))

    @property
    def records(self) -> dict[Path, dict[str, Any]]:
        return {path: json.loads(path.read_bytes()) for path in sorted((self.root / "records").glob("*/*"))}

    def of_kind(self, *kinds: str) -> dict[Path, dict[str, Any]]:
        return {path: record for path, record in self.records.items() if record["kind"] in kinds}

    def put(self, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        place = self.root / "blobs" / sha256[:2] / sha256
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_bytes(content)
        return sha256

    def blob(self, sha256: str) -> bytes:
        return (self.root / "blobs" / sha256[:2] / sha256).read_bytes()

    def write(self, path: Path, record: dict[str, Any]) -> None:
        path.unlink(missing_ok=True)
        path.write_text(json.dumps(record))


def evil_wheel(content: bytes) -> bytes:
    """The same wheel with one line more in a module, or with one module more; RECORD says so too."""
    out = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as archive, zipfile.ZipFile(out, "w") as new:
        names = archive.namelist()
        target = next((name for name in names if name.endswith("__init__.py")), "sitecustomize.py")
        changed = (archive.read(target) if target in names else b"") + EVIL
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        for name in names:
            if name not in (target, record):
                new.writestr(archive.getinfo(name), archive.read(name))
        new.writestr(target, changed)
        lines = [line for line in archive.read(record).decode().splitlines() if not line.startswith(f"{target},")]
        new.writestr(record, "\n".join([f"{target},,", *lines]) + "\n")
    return out.getvalue()


def forge(store: StoreFiles, dice: random.Random, kinds: tuple[str, ...]) -> str:
    """Another wheel in the place of one, in all records of these kinds, and in all pages and manifests they name."""
    wheels = sorted(
        {
            (file["path"].rpartition("/")[2], file["sha256"])
            for record in store.of_kind(*kinds).values()
            for file in record["files"]
            if file["path"].endswith(".whl")
        }
    )
    name, before = dice.choice(wheels)
    content = evil_wheel(store.blob(before))
    after = store.put(content)
    old_size = len(store.blob(before))
    for path, record in store.of_kind(*kinds).items():
        for file in record["files"]:
            if file["sha256"] == before:
                file |= {"sha256": after, "size": len(content)}
            elif not file["path"].endswith(".whl"):
                text = store.blob(file["sha256"])
                if before.encode() in text:
                    text = text.replace(before.encode(), after.encode()).replace(
                        str(old_size).encode(), str(len(content)).encode()
                    )
                    file |= {"sha256": store.put(text), "size": len(text)}
        store.write(path, record)
    return str(name)


def _forget(store: StoreFiles, *kinds: str) -> None:
    """So that what depends on a forged record is made of it."""
    for path in store.of_kind(*kinds):
        path.unlink()


def _fetch_record(store: StoreFiles, dice: random.Random) -> None:
    forge(store, dice, ("fetch",))
    _forget(store, "cut", "pack", "prove")


def _cut_record(store: StoreFiles, dice: random.Random) -> None:
    forge(store, dice, ("cut",))
    _forget(store, "pack", "prove")


def _pack_record(store: StoreFiles, dice: random.Random) -> None:
    forge(store, dice, ("pack",))


def _all_records(store: StoreFiles, dice: random.Random) -> None:
    forge(store, dice, ("fetch", "cut", "pack"))


def _one_more_file(store: StoreFiles, dice: random.Random) -> None:
    for path, record in store.of_kind("pack").items():
        name = dice.choice(("wheels/sitecustomize.py", "conftest.py", "wheels/evil-1-py3-none-any.whl"))
        record["files"].append({"path": name, "sha256": store.put(EVIL), "size": len(EVIL)})
        store.write(path, record)


def _one_file_less(store: StoreFiles, dice: random.Random) -> None:
    for path, record in store.of_kind("pack").items():
        record["files"].remove(dice.choice(record["files"]))
        store.write(path, record)


def _swapped(store: StoreFiles, dice: random.Random) -> None:
    """Records that are real, each in the place of another."""
    (first, one), (second, other) = dice.sample(list(store.of_kind("fetch", "cut").items()), 2)
    store.write(first, other)
    store.write(second, one)
    _forget(store, "pack", "prove")


def _other_page(store: StoreFiles, dice: random.Random) -> None:
    """A page that leads to another host."""
    for path, record in store.of_kind("pack").items():
        file = dice.choice([file for file in record["files"] if file["path"].startswith("simple/")])
        text = store.blob(file["sha256"]).replace(b"../../wheels/", b"http://evil.example/")
        file |= {"sha256": store.put(text + b" "), "size": len(text) + 1}
        store.write(path, record)


def _other_name(store: StoreFiles, dice: random.Random) -> None:
    for path, record in store.of_kind("pack").items():
        record["facts"]["variant"] = dice.choice(("../outside", "/tmp/outside", ".", "", 7, None, "pytorch-other"))
        store.write(path, record)


def _odd_paths(store: StoreFiles, dice: random.Random) -> None:
    for path, record in store.of_kind("fetch", "cut").items():
        for file in record["files"]:
            file["path"] = dice.choice(("a/b/c.whl", "x" * 200 + ".whl", "outcome.json", ".used", "lock"))
        store.write(path, record)
    _forget(store, "pack", "prove")


def _proof(store: StoreFiles, dice: random.Random) -> None:
    """A proof that says so, of a forged wheelhouse."""
    forge(store, dice, ("pack",))
    for path, record in store.of_kind("prove").items():
        store.write(path, record | {"facts": {"checks": {"everything": "pass"}}, "inputs": {}})


FORGERIES: dict[str, Callable[[StoreFiles, random.Random], None]] = {
    "fetch record": _fetch_record,
    "cut record": _cut_record,
    "pack record": _pack_record,
    "all records": _all_records,
    "one more file": _one_more_file,
    "one file less": _one_file_less,
    "swapped records": _swapped,
    "other page": _other_page,
    "other name": _other_name,
    "odd paths": _odd_paths,
    "proof": _proof,
}


def damage(store: StoreFiles, dice: random.Random, path: Path) -> None:
    """Something else than the file that was there."""
    content = path.read_bytes()
    path.unlink()
    match dice.randrange(10):
        case 0:
            path.write_bytes(bytes([content[0] ^ 1]) + content[1:] if content else b"x")
        case 1:
            path.write_bytes(content[: len(content) // 2])
        case 2:
            path.write_bytes(content + b"\0")
        case 3:
            path.symlink_to(dice.choice(("/dev/zero", "/etc/passwd", "nowhere", str(path))))
        case 4:
            os.mkfifo(path)
        case 5:
            (path / "inside").mkdir(parents=True)
        case 6:
            path.write_bytes(b"")
        case 7:
            here = Path.cwd()
            os.chdir(path.parent)  # the name of a socket is short
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path.name)
            os.chdir(here)
        case 8:
            pass  # it is gone
        case 9:
            path.write_bytes(content)
            os.truncate(path, 1 << 40)  # a hole that nobody can read in a day


def damage_folder(dice: random.Random, path: Path, elsewhere: Path) -> None:
    """Something else than the folder that was there."""
    shutil.rmtree(path, ignore_errors=True)
    match dice.randrange(5):
        case 0:
            path.write_bytes(b"x")
        case 1:
            os.mkfifo(path)
        case 2:
            path.symlink_to(dice.choice(("/dev/zero", "nowhere", str(path), "/proc/self/mem")))
        case 3:
            if path.parent.name != "store":
                path.symlink_to(elsewhere)
            elif os.geteuid() == 0:  # a link in the first place may be one's own
                path.symlink_to(elsewhere)
                os.lchown(path, 65534, 65534)
        case 4:
            pass


class Stores(Torture):
    """Cases that begin with a store that has everything, and end with what a build without it gives."""

    def prepare(self, folder: Path) -> None:
        from tests.catalogs import load_pinned

        self._serving = served()
        self.home = folder
        self.workshop = Workshop(next(self._serving), load_pinned(Path("/")), folder)
        self.build(folder / "good", folder / "good-out")
        self.wanted = tree(folder / "good-out")

    def build(self, store: Path, out: Path, *, prove: bool = True) -> None:
        from torchtailor.building.choose import choose
        from torchtailor.building.farm.build import failure_of, plan_farm, run_farm
        from torchtailor.building.farm.where import parse_where
        from torchtailor.building.wheel.options import WheelOptions
        from torchtailor.surgery.cut import Cut

        shop = self.workshop
        backend = shop.backend(WheelOptions(cut=Cut(nvidia=True)))
        plan = backend.plan(choose(shop.catalog, ["sm90-avx512"], release="main"), out)
        where = parse_where("here", shop.catalog)
        farm = plan_farm(plan, where, store=str(store), prove=prove, ledger=shop.ledger)
        if error := failure_of(run_farm(farm, shop.catalog, ledger=shop.ledger)):
            raise error

    def begin(self, dice: random.Random, folder: Path) -> StoreFiles:
        """A copy of the store; a worker of another machine, which has nothing, or this one's."""
        for name in ("store", "out"):
            shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(folder / "good", folder / "store")
        if dice.random() < 0.5:
            shutil.rmtree(folder / "cache", ignore_errors=True)
        return StoreFiles(folder / "store")

    def end(self, folder: Path, *, prove: bool) -> None:
        outside = {path.name for path in folder.iterdir()}
        try:
            self.build(folder / "store", folder / "out", prove=prove)
        except TorchtailorError as error:
            raise AssertionError(f"not made again: {error.message}") from error
        assert tree(folder / "out") == self.wanted, "something else was built"
        more = {path.name for path in folder.iterdir()} - outside - {"out", "cache"}
        assert not more, f"{more} is new"


class ForgedStore(Stores):
    """Somebody puts other wheels, pages and proofs into the store, with records that name them."""

    name = "forged store"

    def attempt(self, dice: random.Random, folder: Path) -> str:
        store = self.begin(dice, folder)
        name = dice.choice([*FORGERIES])
        FORGERIES[name](store, dice)
        self.end(folder, prove=dice.random() < 0.5)
        return name


class DamagedStore(Stores):
    """One, some or all files of the store are damaged, or are no plain files; one run makes them again."""

    name = "damaged store"

    def attempt(self, dice: random.Random, folder: Path) -> str:
        store = self.begin(dice, folder)
        if dice.random() < 0.3:
            return self._folders(dice, folder, store)
        files = [*store.blobs, *store.records]
        kind, some = dice.choice((("one", 1), ("two", 2), ("three", 3), ("half", len(files) // 2), ("all", len(files))))
        for path in dice.sample(files, some):
            damage(store, dice, path)
        self.end(folder, prove=dice.random() < 0.5)
        return kind

    def _folders(self, dice: random.Random, folder: Path, store: StoreFiles) -> str:
        """Folders of it lead elsewhere, where old files of somebody else lie, or are none."""
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        (elsewhere / "letter").write_text("of somebody else")
        tops = [store.root / name for name in ("blobs", "records", "tokens")]
        for path in dice.sample(
            [*tops, *store.root.glob("blobs/*"), *store.root.glob("records/*")], dice.choice((1, 3))
        ):
            if path.parent.is_dir():  # else one above it is gone already
                damage_folder(dice, path, elsewhere)
        self.end(folder, prove=dice.random() < 0.5)
        assert [path.name for path in elsewhere.iterdir()] == ["letter"], "something was written outside of the store"
        return "folders"


def served() -> Iterator[Site]:
    with serve(Site()) as running:
        yield fill(running)


STORES: tuple[type[Torture], ...] = (ForgedStore, DamagedStore)
