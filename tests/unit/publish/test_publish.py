"""Publishing: a folder per target, nothing lost, nothing broken for readers, changed NVIDIA wheels stay at home."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.calling import call as run
from tests.unit.building.conftest import Workshop, catalog, hurry, site, workshop  # noqa: F401
from torchtailor.building.wheel.options import WheelOptions
from torchtailor.core import store
from torchtailor.core.disk import new_file
from torchtailor.core.errors import BadInputError, EnvironmentProblem, NetworkError, NoMatchError, UsageError
from torchtailor.core.store import FolderStore, RemoteStore, Store, open_store
from torchtailor.fetch.cache import Cache
from torchtailor.publish.flox import FloxCall
from torchtailor.publish.publish import publish
from torchtailor.surgery.cut import Cut
from torchtailor.trees.index.pages import (
    IndexedFile,
    index_pages,
    project_pages,
    read_project_json,
    read_root_json,
    root_pages,
)


def files_of(root: Path, target: str) -> dict[str, dict[str, object]]:
    pages = (root / target).glob("*/index.json")
    return {file["filename"]: file for page in pages for file in json.loads(page.read_text())["files"]}


def check(root: Path) -> None:
    """Everything that any page names is there, with its hash; both formats agree."""
    for page in root.glob("*/*/index.json"):
        html = (page.parent / "index.html").read_text()
        for file in json.loads(page.read_text())["files"]:
            assert f"{file['url']}#sha256={file['hashes']['sha256']}" in html
            if not file["url"].startswith("http"):
                path = page.parent / unquote(file["url"])
                assert hashlib.sha256(path.read_bytes()).hexdigest() == file["hashes"]["sha256"]


def test_targets_accumulate_and_files_are_stored_once(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    root = tmp_path / "public"
    workshop.build("sm90-avx512")
    first = publish(workshop.out, open_store(str(root), "--to"))
    assert first.targets == ["cu128-sm90"]
    workshop.build("sm80-avx2", "sm90-avx2", "cpu-armv9")
    second = publish(workshop.out, open_store(root.as_uri(), "--to"))
    assert second.targets == ["cpu", "cu128-sm80", "cu128-sm90"]
    assert second.uploaded == 3  # torch and nccl for sm80, torch for aarch64
    assert sorted(path.name for path in root.iterdir() if path.is_dir()) == ["cpu", "cu128-sm80", "cu128-sm90", "files"]
    torch = "torch-2.8.0+cu128.sm90-cp313-cp313-manylinux_2_28_x86_64.whl"
    assert torch in files_of(root, "cu128-sm90")
    assert torch not in files_of(root, "cu128-sm80")
    assert json.loads((root / "targets.json").read_text()) == ["cpu", "cu128-sm80", "cu128-sm90"]
    check(root)


def test_selectors_choose_what_is_published(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm80-avx2", "sm90-avx2", "sm90-avx512")
    root = tmp_path / "public"
    for selectors, targets in (
        (["sm80-*"], {"cu128-sm80"}),
        (["*-sm90-avx2", "sm80-{avx2,avx512}"], {"cu128-sm80", "cu128-sm90"}),
    ):
        done = run("publish", workshop.out, *selectors, "--to", root, "--json")
        assert (done.returncode, set(json.loads(done.stdout)["targets"])) == (0, targets), done.stderr
    assert not any("avx512" in name for name in files_of(root, "cu128-sm90"))
    other = run("publish", workshop.out, "sm80-*", "sm75-*", "--to", tmp_path / "other")
    assert other.returncode == NoMatchError.code and "sm75-*" in other.stderr and "sm90-avx512" in other.stderr
    assert not (tmp_path / "other").exists()
    assert run("publish", workshop.out, "sm80-*", "--to", root, "--list").returncode == UsageError.code


def test_publishing_again_changes_nothing(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    store = open_store(str(tmp_path / "public"), "--to")
    workshop.build("sm90-avx512")
    publish(workshop.out, store)
    before = {path: path.stat().st_ino for path in (tmp_path / "public" / "cu128-sm90").rglob("*") if path.is_file()}
    assert publish(workshop.out, store).uploaded == 0
    after = {path: path.stat().st_ino for path in (tmp_path / "public" / "cu128-sm90").rglob("*") if path.is_file()}
    assert after == before


class Watching(FolderStore):
    """Checks after every write that readers find what pages name."""

    def put_bytes(self, content: bytes, path: str, content_type: str = "") -> None:
        super().put_bytes(content, path, content_type)
        for page in self.root.glob("*/*/index.json"):
            for file in json.loads(page.read_text())["files"]:
                assert file["url"].startswith("http") or (page.parent / unquote(file["url"])).is_file()


def test_readers_never_find_a_page_that_names_a_missing_file(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm80-avx2", "sm90-avx2")
    publish(workshop.out, Watching(tmp_path / "public"))


def test_two_publishers_at_once_lose_nothing(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm80-avx2", "sm90-avx2", "sm120-avx2")
    houses = sorted(path for path in workshop.out.iterdir() if path.is_dir())
    threads = [
        threading.Thread(target=publish, args=(house, open_store(str(tmp_path / "public"), "--to"))) for house in houses
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads((tmp_path / "public" / "targets.json").read_text())) == 3
    check(tmp_path / "public")


def memory_store(name: str) -> Store:
    return open_store(f"memory://{name}", "--to")


def read_page(store: Store, path: str) -> dict[str, IndexedFile]:
    content = store.read(path)
    assert content is not None
    return {file.filename: file for file in read_project_json(content)}


def test_changed_nvidia_wheels_stay_here_unless_told(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512", options=WheelOptions(cut=Cut(nvidia=True)))
    cache = Cache(workshop.root / "cache")
    away = memory_store("plain")
    result = publish(workshop.out, away, cache=cache)
    left = sorted(name.split("-")[0] for name in result.left_out)
    assert left == ["nvidia_cublas_cu12", "nvidia_cuda_runtime_cu12", "triton"]  # Triton has NVIDIA's CUPTI inside
    (stock_triton,) = read_page(away, "cu128-sm90/triton/index.json")
    assert "sm90" not in stock_triton
    (stock,) = read_page(away, "cu128-sm90/nvidia-cublas-cu12/index.json").values()
    assert stock.filename == "nvidia_cublas_cu12-12.8.4.1-py3-none-manylinux2014_x86_64.whl"
    assert stock.url == f"{workshop.site.url}/files/{stock.filename}"  # where it is published anyway
    (nccl,) = read_page(away, "cu128-sm90/nvidia-nccl-cu12/index.json")  # openly licensed
    assert "+sm90" in nccl

    told = memory_store("told")
    assert publish(workshop.out, told, nvidia_too=True, cache=cache).left_out == []
    (changed,) = read_page(told, "cu128-sm90/nvidia-cublas-cu12/index.json")
    assert "+sm90" in changed

    assert publish(workshop.out, open_store(str(tmp_path / "own"), "--to"), cache=cache).left_out == []


def test_nvidia_s_split_wheels_and_packs_stay_here_too(workshop: Workshop) -> None:  # noqa: F811
    workshop.build("sm90-avx512", options=WheelOptions(variants=True, cut=Cut(nvidia=True, split=True)))
    store = memory_store("split")
    left = publish(workshop.out, store, cache=Cache(workshop.root / "cache")).left_out
    assert {"nvidia_cublas_cu12", "nvidia_cublas_cu12_gpu_sm90"} <= {name.split("-")[0] for name in left}
    assert not any(name.startswith(("torch", "nvidia_nccl")) for name in left)
    for folder in ("cu128-sm90", "variants"):
        assert list(read_page(store, f"{folder}/torch/index.json")) == [
            "torch-2.8.0+cu128.host-cp313-cp313-manylinux_2_28_x86_64.whl"
        ]
        assert list(read_page(store, f"{folder}/nvidia-cublas-cu12/index.json")) == [
            "nvidia_cublas_cu12-12.8.4.1-py3-none-manylinux2014_x86_64.whl"
        ]
        assert store.read(f"{folder}/nvidia-cublas-cu12-gpu-sm90/index.json") is None
        (packs,) = read_page(store, f"{folder}/torch-gpu-sm90/index.json")
        assert packs.startswith("torch_gpu_sm90-2.8.0+cu128.p")


def test_changed_nvidia_variants_stay_here_too(workshop: Workshop) -> None:  # noqa: F811
    workshop.build("sm90-avx512", options=WheelOptions(variants=True, cut=Cut(nvidia=True)))
    store = memory_store("variants")
    publish(workshop.out, store, cache=Cache(workshop.root / "cache"))
    assert not [name for name in read_page(store, "variants/nvidia-cublas-cu12/index.json") if "sm90" in name]
    assert [name for name in read_page(store, "variants/torch/index.json") if name.endswith("-cu128_sm90.whl")]


def test_stock_wheels_without_an_address_come_from_the_cache(workshop: Workshop) -> None:  # noqa: F811
    workshop.build("sm90-avx512", options=WheelOptions(cut=Cut(nvidia=True)))
    for path in workshop.out.glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        for item in manifest["wheels"]:
            item["input"].pop("url")
        path.write_text(json.dumps(manifest))
    store = memory_store("cached")
    assert publish(workshop.out, store, cache=Cache(workshop.root / "cache")).notes == []
    (stock,) = read_page(store, "cu128-sm90/nvidia-cublas-cu12/index.json").values()
    assert stock.url.startswith("../../files/")
    empty = publish(workshop.out, memory_store("empty"), cache=Cache(workshop.root / "no-cache"))
    assert any("clients need another index" in note for note in empty.notes)


THEIRS = {
    "cu128-sm90/torch/index.json": project_pages("torch", [IndexedFile("torch-1-py3-none-any.whl", "x", "0" * 64, 1)])[
        "index.json"
    ],
    "cu128-sm90/index.json": root_pages(["numpy"])["index.json"],
    "targets.json": b'["cpu"]',
    "about.json": json.dumps(
        [
            {
                "target": "cpu",
                "variant": "theirs",
                "requirements": ["torch==1"],
                "python": "3.13",
                "arch": "x86_64",
                "size": 1,
                "stock_size": 2,
            }
        ]
    ).encode(),
}


class Racing(RemoteStore):
    """Another publisher overwrites what was written right after us: once, or always."""

    always = False

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._left = dict(THEIRS)

    def put_bytes(self, content: bytes, path: str, content_type: str = "") -> None:
        super().put_bytes(content, path, content_type)
        theirs = self._left.get(path) if self.always else self._left.pop(path, None)
        if theirs is not None:
            super().put_bytes(theirs, path)


def test_a_lost_update_on_a_store_without_locks_is_repeated(workshop: Workshop) -> None:  # noqa: F811
    workshop.build("sm90-avx512")
    store = Racing("memory://race")
    publish(workshop.out, store, cache=Cache(workshop.root / "cache"))
    assert set(read_page(store, "cu128-sm90/torch/index.json")) == {
        "torch-1-py3-none-any.whl",
        "torch-2.8.0+cu128.sm90-cp313-cp313-manylinux_2_28_x86_64.whl",
    }
    assert {"numpy", "torch"} < read_root_json(store.read("cu128-sm90/index.json") or b"")
    assert json.loads(store.read("targets.json") or b"") == ["cpu", "cu128-sm90"]
    assert [row["target"] for row in json.loads(store.read("about.json") or b"")] == ["cpu", "cu128-sm90"]


def test_a_store_that_is_always_overwritten_is_given_up(workshop: Workshop) -> None:  # noqa: F811
    workshop.build("sm90-avx512")
    store = Racing("memory://race-for-ever")
    store.always = True
    with pytest.raises(NetworkError, match="keeps being overwritten"):
        publish(workshop.out, store, cache=Cache(workshop.root / "cache"))


def test_bad_input(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(BadInputError, match="no wheelhouse"):
        publish(tmp_path, FolderStore(tmp_path / "public"))
    with pytest.raises(UsageError, match="--to nosuch://bucket cannot be written to"):
        open_store("nosuch://bucket", "--to")
    workshop.build("sm90-avx512")
    next(workshop.out.glob("*/wheels/torch-*.whl")).unlink()
    with pytest.raises(BadInputError, match="lacks torch-"):
        publish(workshop.out, FolderStore(tmp_path / "public"))


class NoCredentialsError(Exception):
    """As botocore's: neither an OSError nor a ValueError."""


def test_whatever_a_file_system_raises_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    place = RemoteStore("memory://raising")

    def refuse(*_: object, **__: object) -> None:
        raise NoCredentialsError("Unable to locate credentials for sftp://u:secret@x.")

    monkeypatch.setattr(type(place._system), "cat_file", refuse)
    with pytest.raises(EnvironmentProblem, match=r"cannot be read: there are no credentials .* locate") as caught:
        place.read("targets.json")
    assert "AWS_PROFILE" in caught.value.hint
    assert "secret" not in caught.value.message and ".." not in caught.value.message


@pytest.mark.parametrize("error", [OSError("no such host"), NoCredentialsError()])
def test_whatever_a_plug_in_raises_when_it_connects_is_said(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(_: str) -> None:  # the plug-in for sftp hands anything more to its library, which refuses it
        raise error

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    kind, reason = (NetworkError, "no such") if isinstance(error, OSError) else (EnvironmentProblem, "there are no")
    with pytest.raises(kind, match=rf"sftp://\*\*\*\*@nohost/x cannot be reached: {reason}"):
        open_store("sftp://u:secret@nohost/x", "--to")


def test_pages_escape_and_sort() -> None:
    pages = index_pages(
        [
            IndexedFile("b_c-1.0-py3-none-any.whl", "../../b%2B.whl", "1" * 64, 5, '>=3.9,<4"'),
            IndexedFile("a-2.0-py3-none-any.whl", "../../a2.whl", "2" * 64, 5),
            IndexedFile("a-1.0-py3-none-any.whl", "../../a1.whl", "3" * 64, 5),
        ]
    )
    assert [row["name"] for row in json.loads(pages["index.json"])["projects"]] == ["a", "b-c"]
    assert b"&gt;=3.9,&lt;4&quot;" in pages["b-c/index.html"]
    assert pages["a/index.html"].index(b"a1.whl") < pages["a/index.html"].index(b"a2.whl")
    assert json.loads(pages["a/index.json"])["versions"] == ["1.0", "2.0"]


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@t")
    subprocess.run(["git", *identity, "-C", str(folder), *words], check=True, capture_output=True)


def test_flox_is_called_only_when_the_checks_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools, repo, remote = tmp_path / "bin", tmp_path / "repo", tmp_path / "remote.git"
    for folder in (tools, repo):
        folder.mkdir()
    call = FloxCall(repo, "pytorch-python313-cpu-avx2", "my-org")
    log = tmp_path / "log"
    import os

    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(NoMatchError, match="has no recipe pytorch-python313-cpu-avx2"):
        call.check()
    (repo / ".flox" / "pkgs").mkdir(parents=True)
    (repo / ".flox" / "pkgs" / f"{call.package}.nix").write_text("{ }")
    with pytest.raises(EnvironmentProblem, match="not a git checkout"):
        call.check()
    git(repo, "init", "-q", "-b", "main")
    (repo / "file").write_text("x")
    with pytest.raises(EnvironmentProblem, match="not committed"):
        call.check()
    git(repo, "add", ".")
    git(repo, "commit", "-qm", "x")
    with pytest.raises(EnvironmentProblem, match="no remote"):
        call.check()
    subprocess.run(["git", "init", "-q", "--bare", str(remote)], check=True)
    git(repo, "remote", "add", "origin", str(remote))
    with pytest.raises(EnvironmentProblem, match="on no remote"):
        call.run()
    assert not log.exists()
    git(repo, "push", "-q", "origin", "main")
    shown = run("publish", repo, "--flox", "my-org", "--variant", call.package, "-n")
    assert shown.returncode == 0, shown.stderr  # it needs no flox, but says so
    assert shown.stdout == f"Would run flox publish -o my-org pytorch-python313-cpu-avx2 in {repo.resolve()}.\n"
    assert "flox is not installed" in shown.stderr
    with pytest.raises(EnvironmentProblem, match="flox is not installed"):
        call.run()
    (tools / "flox").write_text(f'#!/bin/sh\necho "$@" >> {log}\nexit $(cat {log}.code)\n')
    (tools / "flox").chmod(0o755)
    (tmp_path / "log.code").write_text("0")
    call.run()
    assert log.read_text() == "publish -o my-org pytorch-python313-cpu-avx2\n"
    (tmp_path / "log.code").write_text("3")
    from torchtailor.core.errors import BuildFailedError

    with pytest.raises(BuildFailedError, match="exit code 3"):
        call.run()


def test_a_kill_between_the_two_pages_is_repaired(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    """Whichever page was written last, publishing again writes what is missing."""
    workshop.build("sm90-avx512")
    whole = tmp_path / "whole"
    publish(workshop.out, open_store(str(whole), "--to"))
    number = sum(path.name in ("index.html", "index.json", "targets.json") for path in whole.rglob("*"))
    for stop in range(number):
        root = tmp_path / f"public{stop}"

        class Killed(FolderStore):
            left = stop

            def put_bytes(self, content: bytes, path: str, content_type: str = "") -> None:
                if path.endswith((".html", ".json")):
                    if self.left == 0:
                        raise KeyboardInterrupt
                    self.left -= 1
                super().put_bytes(content, path, content_type)

        with pytest.raises(KeyboardInterrupt):
            publish(workshop.out, Killed(root))
        publish(workshop.out, FolderStore(root))
        for path in whole.rglob("*"):
            if path.is_file():
                assert (root / path.relative_to(whole)).read_bytes() == path.read_bytes()


def test_a_full_disk_is_said(workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    workshop.build("sm90-avx512")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for function in ("place_verified", "write_atomically"):
        with monkeypatch.context() as patch:
            patch.setattr(store, function, full)
            with pytest.raises(EnvironmentProblem, match="disk is full"):
                publish(workshop.out, FolderStore(tmp_path / function))


def test_what_a_killed_publisher_left_is_removed(workshop: Workshop, tmp_path: Path) -> None:  # noqa: F811
    workshop.build("sm90-avx512")
    root = tmp_path / "public"
    root.mkdir()
    child = os.fork()
    if child == 0:
        try:
            with new_file(root.parent / "x", staging=FolderStore(root).root):
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)  # never on with the tests
    os.waitpid(child, 0)
    assert list(root.glob(".torchtailor-*"))
    publish(workshop.out, open_store(str(root), "--to"))
    assert not list(root.rglob(".torchtailor-*"))
