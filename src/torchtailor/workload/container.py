"""Records a program in a container image, with podman or docker: the recorder is mounted, the image needs nothing."""

from __future__ import annotations

import json
import os
import posixpath
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from torchtailor.core.errors import BadInputError, EnvironmentProblem, NoMatchError
from torchtailor.workload.caches import GpusAndDriver, caching_environment, copy_caches, note_caches
from torchtailor.workload.events import make_trace, read_events
from torchtailor.workload.hook import HookKind, hook_library
from torchtailor.workload.moved_modules import INDEX_VARIABLE
from torchtailor.workload.record import AUDIT, PRELOAD, RECORD_VARIABLE, RecordedRun, run_program, this_machine

ENGINES = ("podman", "docker")
_RECORDER, _RECORDED, _CACHES = (
    f"/torchtailor-{what}" for what in ("recorder", "recorded", "caches")
)  # in the container
_ELF = b"\x7fELF"
_MOST_LINKS = 40  # as Linux follows
_NOT_STARTED = (125, 126, 127)  # what engines end with
_REGISTRY = "docker://"
_FILES = ("oci:", "oci-archive:", "docker-archive:")  # names of images that are in no registry, as skopeo has them


def record_in_image(
    image: str,
    command: Sequence[str] = (),
    *,
    engine_options: Sequence[str] = (),
    stdout: IO[str] | None = None,
    caches: Path | None = None,
    machine: Callable[[], GpusAndDriver],
) -> RecordedRun:
    """Run a program of an image, or what the image runs by itself, to its end; the container goes afterwards. The
    compile caches that it wrote are in `caches`, if that is given."""
    engine = _engine(image)
    known = _known_as(engine, image)
    variables = _variables(engine, known)
    with tempfile.TemporaryDirectory(prefix="torchtailor-record-", ignore_cleanup_errors=True) as name:
        folder = Path(name)  # nobody else gets into it; what is mounted is for whoever runs in the container
        hooks, recorded, root, cached = (folder / part for part in ("hooks", "recorded", "root", "caches"))
        for one, mode in ((hooks, 0o755), (recorded, 0o1777)):
            one.mkdir()
            one.chmod(mode)
        preloads = {PRELOAD: HookKind.PRELOAD, AUDIT: HookKind.AUDIT}
        new = {RECORD_VARIABLE: _RECORDED, INDEX_VARIABLE: "0"}
        for variable, kind in preloads.items():
            hook = hook_library(this_machine(), kind)
            shutil.copy(hook, hooks)
            others = variables.get(variable, "").replace(" ", ":").split(":")
            new[variable] = ":".join(filter(None, [f"{_RECORDER}/{hook.name}", *others]))
        mounts = [f"source={hooks},target={_RECORDER},readonly", f"source={recorded},target={_RECORDED}"]
        if caches:
            new |= caching_environment(caches, _CACHES)
            caching_environment(cached)
            copy_caches(caches, cached)
            for one in (cached, *(path for path in cached.rglob("*") if path.is_dir())):
                one.chmod(0o777)
            mounts.append(f"source={cached},target={_CACHES}")
        words = [word for variable, value in new.items() for word in ("--env", f"{variable}={value}")]
        for mount in mounts:
            words += ["--mount", f"type=bind,{mount}"]
        identity = folder / "container"
        line = [engine, "run", "--cidfile", str(identity), "--security-opt", "label=disable"]
        code = run_program([*line, *words, *engine_options, known, *command], os.environ, stdout)
        try:
            if not identity.exists() or (code in _NOT_STARTED and not any(recorded.iterdir())):
                raise EnvironmentProblem(
                    f"{engine} could not start a container of {image}.", "Its own message is above."
                )
            events = read_events(recorded.iterdir())
            wanted = map(posixpath.normpath, (*events.loads, *events.misses, *events.mapped))
            _unpack(engine, identity.read_text().strip(), root, wanted)
        finally:
            if identity.exists():
                made = identity.read_text().strip()
                subprocess.run([engine, "rm", "--force", made], capture_output=True, check=False)
        roots = [Path(place) for place in variables.get("PYTHONPATH", "").split(":") if place.startswith("/")]
        program = shlex.join(command) or "its own program"
        if caches:
            copy_caches(cached, caches)
        kept = note_caches(caches, events.opened, machine, root, _CACHES) if caches else None
        return RecordedRun(make_trace(events, [f"{image}: {program}"], roots, root), code, kept)


def _engine(image: str) -> str:
    engine = next(filter(shutil.which, ENGINES), None)
    if engine is None:
        raise EnvironmentProblem(
            f"There is neither podman nor docker here to run {image}.",
            "Install one, or record where the image runs: `torchtailor help image-record` says how.",
        )
    return engine


def _known_as(engine: str, image: str) -> str:
    """What the engine calls an image that is named as the other commands name it; one in files is read by podman."""
    if not image.startswith(_FILES):
        return image.removeprefix(_REGISTRY)
    if engine != "podman":
        raise EnvironmentProblem(
            f"{engine} does not run images out of files, such as {image}.",
            f"Install podman, or `skopeo copy {image} docker-daemon:NAME:TAG` and name that.",
        )
    taken = subprocess.run([engine, "pull", "--quiet", image], stdout=subprocess.PIPE, text=True, check=False)
    if taken.returncode or not taken.stdout.strip():
        raise NoMatchError(f"{engine} cannot read the image {image}.", "Its own message is above.")
    return taken.stdout.split()[-1]


def _variables(engine: str, image: str) -> dict[str, str]:
    """What the image sets, fetched if it is not there yet."""
    line = [engine, "image", "inspect", "--format", "{{json .Config.Env}}", image]
    found = subprocess.run(line, capture_output=True, text=True, check=False)
    if found.returncode:
        if subprocess.run([engine, "pull", image], stdout=subprocess.DEVNULL, check=False).returncode:
            raise NoMatchError(f"{engine} has no image {image}, and cannot fetch it.", "Its own message is above.")
        found = subprocess.run(line, capture_output=True, text=True, check=False)
    try:
        pairs = [str(entry).partition("=") for entry in json.loads(found.stdout) or ()]
    except (ValueError, TypeError) as error:
        raise BadInputError(f"{engine} does not say what {image} sets.", f"Look at `{shlex.join(line)}`.") from error
    return {name: value for name, _, value in pairs}


def _unpack(engine: str, container: str, root: Path, wanted: Iterable[str]) -> None:
    """Put libraries of a container below a folder, each at the path by which the program knew it. The folder gets no
    links, whatever the container has, and of other files nothing."""
    root.mkdir()
    links: dict[str, str] = {}
    missing = set(wanted)
    for _ in range(2):  # where links lead is known after the first time
        targets: dict[str, list[str]] = {}
        for path in missing:
            targets.setdefault(_resolved(path, links), []).append(path)
        with _exported(engine, container) as tar:
            for member in tar:
                place = posixpath.normpath(f"/{member.name}")
                if member.issym():
                    links[place] = posixpath.join(posixpath.dirname(place), member.linkname)
                elif member.isdir() and place.endswith(".dist-info"):
                    (root / place[1:]).mkdir(parents=True, exist_ok=True)
                elif member.isreg() and place in targets and (content := tar.extractfile(member)):
                    _put(content, [root / path.lstrip("/") for path in targets[place]])
                    missing.difference_update(targets[place])
        if not links or all(_resolved(path, links) == path for path in missing):
            return


@contextmanager
def _exported(engine: str, container: str) -> Iterator[tarfile.TarFile]:
    """The files of a container, all of them or an error."""
    with subprocess.Popen([engine, "export", container], stdout=subprocess.PIPE) as export:
        assert export.stdout
        try:
            with tarfile.open(fileobj=export.stdout, mode="r|") as tar:
                yield tar
            whole = True
        except tarfile.ReadError:
            whole = False
        while export.stdout.read(1 << 16):  # what comes after the end of the archive
            pass
    if export.returncode or not whole:
        raise EnvironmentProblem(
            f"{engine} does not give the files of the container that it ran.",
            "Its own message is above. Record again; nobody else may remove the container meanwhile.",
        )


def _put(content: IO[bytes], places: Iterable[Path]) -> None:
    head = content.read(len(_ELF))
    if head != _ELF:
        return
    first, *others = places
    first.parent.mkdir(parents=True, exist_ok=True)
    with first.open("wb") as file:
        file.write(head)
        shutil.copyfileobj(content, file)
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.hardlink_to(first)


def _resolved(path: str, links: dict[str, str]) -> str:
    """A path in the container, without links."""
    place, rest = "/", [part for part in path.split("/") if part]
    for _ in range(_MOST_LINKS * len(path)):
        if not rest:
            break
        place = posixpath.normpath(posixpath.join(place, rest.pop(0)))
        if place in links:
            rest = [*(part for part in links[place].split("/") if part), *rest]
            place = "/"
    return place
