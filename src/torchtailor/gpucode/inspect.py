"""Inspects libraries, wheels, folders and environments on all cores."""

from __future__ import annotations

import gc
import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

from torchtailor.artifact.inputs import Input, InputKind, Item, open_input
from torchtailor.binary.elf import NotElfError, UnsupportedElfError
from torchtailor.cgroups import available_cores
from torchtailor.errors import BadInputError
from torchtailor.gpucode.report import InputReport, LibraryReport, Skipped, summarise
from torchtailor.gpucode.scan import scan_file, scan_member

Done = Callable[[Item], None]
_WORTH_PROCESSES = 64 << 20  # bytes; below, starting processes takes longer than the work


def inspect(
    paths: Sequence[Path], *, processes: int | None = None, done: Done | None = None
) -> tuple[InputReport, ...]:
    """Read the GPU code of all that the paths hold; `done` is told of each library that was read.

    What cannot be read is an error where the user named that very file, and is reported as skipped where it was
    found in a wheel, a folder or an environment.
    """
    return inspect_inputs([open_input(path) for path in paths], processes=processes, done=done)


def inspect_inputs(
    inputs: Sequence[Input], *, processes: int | None = None, done: Done | None = None
) -> tuple[InputReport, ...]:
    """The same for inputs that were opened before."""
    items = {id(item): item for one in inputs for item in one.items}
    results: dict[int, LibraryReport | BadInputError] = {}
    for item, result in _read_all(list(items.values()), processes):
        results[id(item)] = result
        if done:
            done(item)
    return tuple(_collect(one, results) for one in inputs)


def _collect(one: Input, results: dict[int, LibraryReport | BadInputError]) -> InputReport:
    libraries, skipped = [], []
    for item in one.items:
        result = results[id(item)]
        if isinstance(result, LibraryReport):
            libraries.append(result)
        elif one.kind is InputKind.LIBRARY:
            raise result
        else:
            foreign = isinstance(result, NotElfError | UnsupportedElfError)
            skipped.append(Skipped(item.name, result.message, damaged=not foreign))
    return InputReport(str(one.path), one.kind, tuple(libraries), tuple(skipped))


def _read_all(items: Sequence[Item], processes: int | None) -> Iterator[tuple[Item, LibraryReport | BadInputError]]:
    largest_first = sorted(items, key=lambda item: item.size, reverse=True)
    workers = min(processes or available_cores(), len(items))
    if workers < 2 or sum(item.size for item in items) < _WORTH_PROCESSES:
        for item in largest_first:
            yield item, _read(item)
        return
    yield from _read_in_processes(largest_first, workers)


def _read_in_processes(items: Iterable[Item], workers: int) -> Iterator[tuple[Item, LibraryReport | BadInputError]]:
    # forking is quicker by the import of everything, and safe only while there are no other threads
    method = "fork" if threading.active_count() == 1 else "spawn"
    with ProcessPoolExecutor(workers, multiprocessing.get_context(method), initializer=gc.disable) as pool:
        futures: dict[Future[LibraryReport | BadInputError], Item] = {pool.submit(_read, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _read(item: Item) -> LibraryReport | BadInputError:
    try:
        code = scan_file(item.where) if isinstance(item.where, Path) else scan_member(item.where)
    except BadInputError as error:
        return type(error)(error.message, error.hint)  # without the frames that hold the file
    except OSError as error:
        return BadInputError(f"{item.name} cannot be read: {error.strerror}.")
    return summarise(item.name, code)
