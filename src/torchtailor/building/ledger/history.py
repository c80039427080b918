"""The history of builds as tables: columns, each with its title in a terminal and in a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from torchtailor.building.ledger.ledger import Attempt, LedgerJob, Result
from torchtailor.catalog import SOURCE
from torchtailor.core.format import human_bytes, human_seconds, markdown_table

RowT = TypeVar("RowT")
# The switches that matter most when PyTorch is built for a new GPU.
_ALWAYS = ("USE_CUDA", "USE_CUDNN", "USE_FLASH_ATTENTION", "USE_XNNPACK", "USE_NCCL")


@dataclass(frozen=True, slots=True)
class Column(Generic[RowT]):
    """One column; without a title for reports it is in no report."""

    title: str
    text: Callable[[RowT], str]
    reported: str = ""


def attempt_columns(attempts: Sequence[Attempt]) -> tuple[Column[Attempt], ...]:
    """The columns of attempts; switches of importance have one each, and all other settings are one together."""
    return (
        Column("#", lambda row: str(row.number), "Attempt"),
        Column("started", lambda row: row.started.astimezone().strftime("%Y-%m-%d %H:%M")),
        Column("variant", lambda row: row.variant, "Variant"),
        Column("method", lambda row: row.method, "Method"),
        *(Column(name, partial(_switch, name), name) for name in switch_columns(attempts)),
        Column("configuration", lambda row: describe(row.configuration), "Configuration"),
        Column("result", lambda row: row.result.words + _stopped_at(row), "Result"),
        Column("in", lambda row: human_bytes(row.input_bytes) if row.input_bytes is not None else ""),
        Column("out", lambda row: human_bytes(row.output_bytes) if row.output_bytes is not None else ""),
        Column("took", lambda row: human_seconds(row.duration) if row.duration is not None else "", "Duration"),
        Column("error", lambda row: ": ".join(part for part in (row.error_class, row.error) if part), "Error"),
        Column("fix", lambda row: row.fix, "Fix"),
    )


JOB_COLUMNS: tuple[Column[LedgerJob], ...] = (
    Column("run", lambda row: row.run, "Run"),
    Column("ended", lambda row: row.ended.astimezone().strftime("%Y-%m-%d %H:%M")),
    Column("job", lambda row: row.label, "Job"),
    Column("worker", lambda row: row.worker, "Worker"),
    Column("result", lambda row: row.result.words, "Result"),
    Column("took", lambda row: human_seconds(row.duration), "Duration"),
    Column("hits", lambda row: f"{row.hits}/{row.hits + row.misses}" if row.hits + row.misses else "", "Hits"),
    Column("error", lambda row: row.error, "Error"),
    Column("fix", lambda row: row.fix, "Fix"),
    Column("log", lambda row: row.log),
)


def as_markdown(columns: Sequence[Column[RowT]], rows: Sequence[RowT]) -> str:
    """The columns of a report as a Markdown table."""
    reported = [column for column in columns if column.reported]
    cells = ([column.text(row) for column in reported] for row in rows)
    return markdown_table([column.reported for column in reported], cells)


def switch_columns(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    """The switches that differ between builds from source or were given with --set, after the most important ones."""
    built = [attempt for attempt in attempts if attempt.method == SOURCE]
    if not built:
        return ()
    present = {name for attempt in built for name in attempt.configuration if name.isupper()}
    chosen = [name for name in _ALWAYS if name in present]
    by_hand = {str(word).partition("=")[0] for attempt in built for word in _given(attempt)}
    differing = {name for name in present if len({str(attempt.configuration.get(name)) for attempt in built}) > 1}
    return (*chosen, *sorted((present & (by_hand | differing)) - set(chosen)))


def describe(configuration: Mapping[str, object]) -> str:
    """`nvidia=on, torch=2.8.0`: the settings in one line, without the many switches of a build from source (USE_X)."""
    words = []
    for key, value in configuration.items():
        if value in (None, "", [], {}) or key.isupper():
            continue
        text = {True: "on", False: "off"}[value] if isinstance(value, bool) else _plain(value)
        words.append(f"{key}={text}")
    return ", ".join(words)


def _switch(name: str, attempt: Attempt) -> str:
    return str(attempt.configuration.get(name, ""))


def _given(attempt: Attempt) -> Sequence[object]:
    given = attempt.options.get("set", ())
    return given if isinstance(given, list) else ()


def _stopped_at(attempt: Attempt) -> str:
    """` at 92 % (compile)`: where an attempt that did not succeed stopped."""
    if attempt.result in (Result.DONE, Result.FOUND, Result.RUNNING):
        return ""
    percent = f" at {attempt.percent:.0f} %" if attempt.percent is not None else ""
    return percent + (f" ({attempt.stage})" if attempt.stage else "")


def _plain(value: object) -> str:
    return ";".join(map(str, value)) if isinstance(value, list) else str(value)
