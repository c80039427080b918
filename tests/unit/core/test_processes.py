"""The processes of all commands: where they cannot be had, and when one of them is killed."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.unit.oci.builder import stock, tar_of
from tests.unit.wheels.builder import build_wheel
from torchtailor.cli import main
from torchtailor.core import processes
from torchtailor.core.errors import ExitCode
from torchtailor.core.processes import run_all

FAT = (Path(__file__).parents[1] / "gpucode" / "fixtures" / "raw.so").read_bytes()


@dataclass(frozen=True)
class Job:
    number: int
    size: int = 1


def be_killed(*_: object) -> None:
    """As the kernel does where memory is short."""
    assert multiprocessing.parent_process() is not None, "not in a worker"
    os.kill(os.getpid(), signal.SIGKILL)


def take_a_while(job: Job) -> int:
    time.sleep(0.2)
    return job.number


def process_of(job: Job) -> tuple[int, int]:
    return job.number, os.getpid()


@pytest.mark.parametrize(
    ("function", "command"),
    [
        ("verification.inspection.read._read", "inspect {wheel}"),
        ("tailoring.wheel._cut", "tailor {wheel} --gpu 9.0 -o {out} --jobs 2"),
        ("verification.static.read._read", "verify {wheel} --gpu 9.0 --level static"),
        ("tailoring.image.libraries._cut_one", "image {image} oci:{out} --gpu 9.0 --jobs 2"),
    ],
)
def test_a_killed_worker_is_said_in_the_same_words(
    function: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    libraries = {f"demo/lib{number}.so": FAT[:-number] + b"\1" * number for number in (1, 2)}
    wheel = build_wheel(tmp_path, libraries)
    image = stock(tmp_path / "image", [tar_of({f"usr/lib/{name}": data for name, data in libraries.items()})])
    monkeypatch.setattr(processes, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr("torchtailor.verification.inspection.read.available_cores", lambda: 2)
    monkeypatch.setattr("torchtailor.verification.static.read.available_cores", lambda: 2)
    monkeypatch.setattr(f"torchtailor.{function}", be_killed)
    words = [word.format(wheel=wheel, image=image, out=tmp_path / "out") for word in command.split()]
    assert main(words) == ExitCode.ENVIRONMENT
    said = " ".join(capsys.readouterr().err.split())
    assert "error: A worker process was killed, perhaps for lack of memory." in said
    assert "put `taskset -c 0` before the command." in said
    assert not [*(tmp_path / "out").glob("*.whl")] and not (tmp_path / "out" / "index.json").exists()


def test_work_in_processes_and_in_a_daemonic_process() -> None:
    jobs = [Job(number) for number in range(3)]
    results = dict(run_all(process_of, jobs, processes=2, worth=0))
    assert {job: number for job, (number, _) in results.items()} == {job: job.number for job in jobs}
    assert os.getpid() not in {process for _, process in results.values()}
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def without_children() -> None:
        queue.put((os.getpid(), [result for _, result in run_all(process_of, jobs, processes=2, worth=0)]))

    daemon = context.Process(target=without_children, daemon=True)
    daemon.start()
    own, done = queue.get()
    daemon.join()
    assert done == [(number, own) for number in range(3)]


def test_results_that_nobody_asks_for_end_with_their_processes() -> None:
    """As when Ctrl-C comes before the first of them is read."""
    results = run_all(take_a_while, [Job(number) for number in range(9)], processes=2, worth=0)
    assert multiprocessing.active_children()
    del results
    assert not multiprocessing.active_children()
    assert not [thread for thread in threading.enumerate() if "Executor" in type(thread).__name__]


def test_without_shared_semaphores_the_work_is_done_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/shm of a bare chroot is not writable for users, which said that the output cannot be written."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(multiprocessing.context.BaseContext, "Semaphore", refuse)
    done = run_all(process_of, [Job(1), Job(2)], processes=2, worth=0)
    assert {process for _, (_, process) in done} == {os.getpid()}


@pytest.mark.parametrize(("sizes", "started"), [([100] + [1] * 20, 8), ([1] * 12, 12), ([5, 5, 1], 3)])
def test_no_more_processes_than_can_end_sooner(sizes: list[int], started: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest job is waited for in any case."""
    pools: list[int] = []

    def pool(workers: int, *_: object, **__: object) -> ThreadPoolExecutor:
        pools.append(workers)
        return ThreadPoolExecutor(workers)  # which starts none: each would import everything

    monkeypatch.setattr(processes, "ProcessPoolExecutor", pool)
    jobs = [Job(number, size) for number, size in enumerate(sizes)]
    done = run_all(process_of, jobs, processes=32, worth=0)
    assert sorted(job.number for job, _ in done) == list(range(len(sizes)))
    assert pools == [started]
