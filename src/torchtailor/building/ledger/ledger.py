"""The ledger: every build attempt, kept in the user's state directory.

One SQLite file, safe for several processes. An attempt is written when it starts, so that a killed one is known later.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from torchtailor.catalog.variants.select import expand_braces, name_matches
from torchtailor.core.disk import STATE_VARIABLE, state_folder
from torchtailor.core.documents import Seconds
from torchtailor.core.errors import EnvironmentProblem, TorchtailorError

_SCHEMA_VERSION = 5
_WAIT_FOR_LOCK = 30.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS attempt (
    id INTEGER PRIMARY KEY,
    variant TEXT NOT NULL,
    way TEXT NOT NULL,
    options TEXT NOT NULL,
    configuration TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    boot TEXT NOT NULL,
    started TEXT NOT NULL,
    duration REAL,
    result TEXT NOT NULL,
    error_class TEXT NOT NULL DEFAULT '',
    error TEXT NOT NULL DEFAULT '',
    fix TEXT NOT NULL DEFAULT '',
    stage TEXT NOT NULL DEFAULT '',
    input_bytes INTEGER,
    output_bytes INTEGER
)
"""
# What each version of the schema added to the one before it.
_MIGRATIONS = {
    1: (_SCHEMA,),
    2: (
        "ALTER TABLE attempt ADD COLUMN log TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE attempt ADD COLUMN percent REAL",
        "ALTER TABLE attempt ADD COLUMN failure TEXT NOT NULL DEFAULT ''",
    ),
    3: ("ALTER TABLE attempt RENAME COLUMN way TO method",),
    4: (
        """
CREATE TABLE job (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    key TEXT NOT NULL,
    label TEXT NOT NULL,
    worker TEXT NOT NULL,
    ended TEXT NOT NULL,
    duration REAL NOT NULL,
    result TEXT NOT NULL,
    hits INTEGER NOT NULL,
    misses INTEGER NOT NULL,
    error TEXT NOT NULL,
    fix TEXT NOT NULL,
    failure TEXT NOT NULL,
    log TEXT NOT NULL
)
""",
    ),
    5: ("ALTER TABLE job ADD COLUMN variants TEXT NOT NULL DEFAULT ''",),
}


class Result(Enum):
    """How an attempt ended."""

    RUNNING = "running"
    DONE = "done"
    FOUND = "found"  # a store had it, and nothing had to be built
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    KILLED = "killed"  # started, never ended, and its process is gone

    @property
    def words(self) -> str:
        """As people read it."""
        return "found in the store" if self is Result.FOUND else self.value


@dataclass(frozen=True, slots=True)
class Attempt:
    """One row of the ledger: a build that was started."""

    number: int
    variant: str
    method: str
    options: Mapping[str, Any]
    configuration: Mapping[str, Any]
    host: str
    started: datetime
    duration: Annotated[float | None, Meta(description="seconds")]
    result: Result
    error_class: str
    error: str
    fix: str
    stage: str
    input_bytes: int | None
    output_bytes: int | None
    log: str = ""
    percent: float | None = None  # progress when it stopped
    failure: Annotated[str, Meta(description="the id that `doctor` has for it")] = ""


@dataclass(frozen=True, slots=True)
class Attempts:
    """Builds that were started."""

    attempts: tuple[Attempt, ...]


@dataclass(slots=True)
class Running:
    """An attempt in progress: what becomes known of it is set here."""

    number: int
    configuration: dict[str, object] = field(default_factory=dict)
    stage: str = ""
    fix: str = ""
    input_bytes: int | None = None
    output_bytes: int | None = None
    log: str = ""
    percent: float | None = None
    failure: str = ""
    found: bool = False  # in a store, and not built


@dataclass(frozen=True, slots=True)
class LedgerJob:
    """One job of a build on many machines."""

    run: str  # the run it was part of
    key: str
    label: str
    worker: str
    duration: Seconds
    result: Result
    hits: Annotated[int, Meta(description="files that the cache of its kind of job had")] = 0
    misses: int = 0
    error: str = ""
    fix: str = ""
    failure: Annotated[str, Meta(description="the id that `doctor` has for it")] = ""
    log: Annotated[str, Meta(description="a file with what the job printed, if it failed")] = ""
    variants: Annotated[tuple[str, ...], Meta(description="that needed it")] = ()
    ended: datetime = field(default_factory=lambda: datetime.now(UTC))


_JOB_COLUMNS = tuple(field.name for field in fields(LedgerJob))


@dataclass(frozen=True, slots=True)
class LedgerJobs:
    """Jobs of builds on many machines."""

    jobs: tuple[LedgerJob, ...]


class Ledger:
    """All attempts made by this user."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or state_folder() / "ledger.sqlite"

    @contextmanager
    def attempt(
        self,
        variant: str,
        method: str,
        *,
        options: Mapping[str, object] | None = None,
        configuration: Mapping[str, object] | None = None,
        host: str | None = None,
    ) -> Iterator[Running]:
        """Record the result of the block: done, or failed with the error's class, message and hint.

        A ledger that cannot be written when the block ends does not change how it ended.
        """
        running = self._start(variant, method, options or {}, configuration or {}, host or platform.node())
        began = time.monotonic()
        try:
            yield running
        except KeyboardInterrupt:
            self._end(running, time.monotonic() - began, Result.INTERRUPTED, error_class="KeyboardInterrupt")
            raise
        except TorchtailorError as error:
            running.fix = running.fix or error.hint
            seconds = time.monotonic() - began
            self._end(running, seconds, Result.FAILED, error_class=type(error).__name__, error=error.message)
            raise
        except BaseException as error:
            seconds = time.monotonic() - began
            self._end(running, seconds, Result.FAILED, error_class=type(error).__name__, error=str(error))
            raise
        self._end(running, time.monotonic() - began, Result.FOUND if running.found else Result.DONE)

    def attempts(self, *, variant: str | None = None, limit: int | None = None) -> tuple[Attempt, ...]:
        """Attempts in the order they were made, of the variants of a name or glob; the last `limit` of them."""
        return tuple(_attempt(row) for row in self._rows("attempt", "variant", variant, limit))

    def add_job(self, job: LedgerJob) -> None:
        """Note a job that has ended."""
        row = {name: getattr(job, name) for name in _JOB_COLUMNS} | {
            "result": job.result.value,
            "variants": " ".join(job.variants),
            "ended": job.ended.isoformat(timespec="seconds"),
        }
        with self._connect() as connection:
            connection.execute(_insert("job", row), row)

    def jobs(self, *, variant: str | None = None, limit: int | None = None) -> tuple[LedgerJob, ...]:
        """Jobs in the order they ended, for the variants of a name or glob or for all; the last `limit` of them."""
        return tuple(_job(row) for row in self._rows("job", "variants", variant, limit))

    def _rows(self, table: str, column: str, variant: str | None, limit: int | None) -> list[sqlite3.Row]:
        """The last rows of a table, of which a column has names of variants."""
        if not self.path.is_file():
            return []
        patterns = expand_braces(variant.lower()) if variant else ("*",)
        where = f"WHERE wanted({column})" if variant else ""
        with self._connect() as connection:
            connection.row_factory = sqlite3.Row
            connection.create_function(
                "wanted", 1, lambda names: any(name_matches(name, patterns) for name in names.split())
            )
            query = f"SELECT * FROM {table} {where} ORDER BY id DESC LIMIT ?"
            return connection.execute(query, (limit or -1,)).fetchall()[::-1]

    def _start(
        self,
        variant: str,
        method: str,
        options: Mapping[str, object],
        configuration: Mapping[str, object],
        host: str,
    ) -> Running:
        row = {
            "variant": variant,
            "method": method,
            "options": _json(options),
            "configuration": _json(configuration),
            "host": host,
            "pid": os.getpid(),
            "boot": _boot_id(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "result": Result.RUNNING.value,
        }
        with self._connect() as connection:
            cursor = connection.execute(_insert("attempt", row), row)
        assert cursor.lastrowid is not None
        return Running(cursor.lastrowid, dict(configuration))

    def note(self, running: Running) -> None:
        """Save the state of an attempt in progress, in case it is killed."""
        self._update(running.number, **_state(running))

    def _end(self, running: Running, seconds: float, result: Result, *, error_class: str = "", error: str = "") -> None:
        with suppress(EnvironmentProblem):
            self._update(
                running.number,
                **_state(running),
                duration=seconds,
                result=result.value,
                error_class=error_class,
                error=error,
                fix=running.fix,
                input_bytes=running.input_bytes,
                output_bytes=running.output_bytes,
                failure=running.failure,
            )

    def _update(self, number: int, **values: object) -> None:
        columns = ", ".join(f"{name} = :{name}" for name in values)
        with self._connect() as connection:
            connection.execute(f"UPDATE attempt SET {columns} WHERE id = :number", {**values, "number": number})

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=_WAIT_FOR_LOCK)
            try:
                with connection:
                    _prepare(connection, self.path)
                    yield connection
            finally:
                connection.close()
        except (OSError, sqlite3.Error) as error:
            raise EnvironmentProblem(
                f"The ledger {self.path} cannot be used: {error}.",
                f"Move the file away, or set {STATE_VARIABLE} to a folder you can write to.",
            ) from error


class OpenAttempts:
    """Attempts at several variants, each of which ends when its variant does; an error that ends the block ends all."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ends: dict[str, ExitStack] = {}
        self.running: dict[str, Running] = {}

    def start(
        self, variant: str, method: str, options: Mapping[str, object], configuration: Mapping[str, object]
    ) -> None:
        self._ends[variant] = ExitStack()
        attempt = self._ledger.attempt(variant, method, options=options, configuration=configuration)
        self.running[variant] = self._ends[variant].enter_context(attempt)

    def end(self, variant: str, error: BaseException | None = None) -> None:
        """End an attempt, unless it has ended; with an error where it failed."""
        with suppress(type(error)) if error else nullcontext(), self._ends.pop(variant, ExitStack()):
            if error:
                raise error

    def __enter__(self) -> OpenAttempts:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for variant in [*self._ends]:
            self.end(variant, error)


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > _SCHEMA_VERSION:
        raise EnvironmentProblem(
            f"The ledger {path} was written by a newer torchtailor.", f"Upgrade, or set {STATE_VARIABLE}."
        )
    if version < _SCHEMA_VERSION:
        connection.execute("BEGIN IMMEDIATE")  # of two processes, the second finds it done
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for step in range(version + 1, _SCHEMA_VERSION + 1):
            for statement in _MIGRATIONS[step]:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")


def _state(running: Running) -> dict[str, object]:
    """What is known of an attempt before it ends."""
    return {
        "stage": running.stage,
        "configuration": _json(running.configuration),
        "log": running.log,
        "percent": running.percent,
    }


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(values, default=str, sort_keys=True)


def _insert(table: str, row: Mapping[str, object]) -> str:
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join(f':{name}' for name in row)})"


def _attempt(row: sqlite3.Row) -> Attempt:
    result = Result(row["result"])
    if result is Result.RUNNING and not _alive(row["host"], row["pid"], row["boot"]):
        result = Result.KILLED
    read = {
        "number": row["id"],
        "result": result,
        "options": json.loads(row["options"]),
        "configuration": json.loads(row["configuration"]),
        "started": datetime.fromisoformat(row["started"]),
    }
    return Attempt(**{field.name: row[field.name] for field in fields(Attempt) if field.name not in read}, **read)


def _job(row: sqlite3.Row) -> LedgerJob:
    read = {
        "result": Result(row["result"]),
        "variants": tuple(row["variants"].split()),
        "ended": datetime.fromisoformat(row["ended"]),
    }
    return LedgerJob(**{name: row[name] for name in _JOB_COLUMNS} | read)


def _alive(host: str, pid: int, boot: str) -> bool:
    """Whether a process still runs; on another host that is not known, and it counts as running."""
    if boot != _boot_id():
        return host != platform.node()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
