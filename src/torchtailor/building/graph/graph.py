"""Jobs, work as values that can be sent to another machine, and a plan as a graph of them: who waits for whom, what
each weighs, and which variants need it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import Any, Protocol

import msgspec

from torchtailor.core.errors import BadInputError
from torchtailor.core.shapes import shaped
from torchtailor.core.version import code_key


class Job(Protocol):
    """Work as a value."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The keys of the outputs that it reads."""

    @property
    def gives(self) -> tuple[str, ...]:
        """The keys of the outputs that it makes."""


def job_key(kind: str, job: msgspec.Struct, *inputs: str) -> str:
    """The key of what a job gives, made of all that decides its bytes: inputs, options, and the code that makes it."""
    text = "\n".join((code_key(), kind, *inputs)).encode()
    return hashlib.sha256(text + b"\n" + encode_job(job)).hexdigest()


def encode_job(job: object) -> bytes:
    """A job as JSON; the same job gives the same bytes."""
    return msgspec.json.encode(job, order="deterministic")


def decode_job(data: bytes, kinds: Any) -> Any:
    """The job, one of these kinds, of a JSON document that `encode_job` made."""
    try:
        return msgspec.json.decode(data, type=shaped(kinds))
    except msgspec.MsgspecError as error:
        raise BadInputError(
            f"This is not a job of torchtailor: {error}.", "Use the same version on every machine."
        ) from error


class JobWeight(msgspec.Struct, frozen=True):
    """What a job needs: seconds on one core, and bytes of memory."""

    seconds: float
    memory: int = 200_000_000
    line: float = 0.0  # of its seconds, those on the line to the index, which all workers share


@dataclass(frozen=True)
class GraphJob:
    """A job of a graph."""

    job: Job
    label: str  # as people read it
    weight: JobWeight
    variants: tuple[str, ...] = ()  # that cannot be built without it
    here: bool = False  # it reads files of the machine that the command was given on, and runs there
    machine: str = ""  # the architecture that it needs; none: any
    warm: str = ""  # what a worker has ready after the first such job, such as a configured tree
    warming: float = 0.0  # seconds that this takes a worker which does not have it

    @property
    def kind(self) -> str:
        """The tag of a job that travels as JSON; any other is known by its class."""
        tag = self.job.__struct_config__.tag if isinstance(self.job, msgspec.Struct) else None
        return str(tag or type(self.job).__name__)

    @cached_property
    def needs(self) -> tuple[str, ...]:
        return self.job.needs

    @cached_property
    def gives(self) -> tuple[str, ...]:
        return self.job.gives

    @property
    def name(self) -> str:
        """What identifies the job in a graph: the first of its outputs, which no other job makes."""
        return self.gives[0]


@dataclass(frozen=True)
class GraphCost:
    """What a graph costs where nothing of it is done."""

    jobs: int
    core_seconds: float
    critical_seconds: float  # of the longest chain: no number of workers is faster


class JobGraph:
    """Jobs and their order; every output is made by one job."""

    def __init__(self, jobs: Iterable[GraphJob]) -> None:
        self.jobs: Mapping[str, GraphJob] = {job.name: job for job in jobs}
        self.makers: Mapping[str, str] = {key: job.name for job in self.jobs.values() for key in job.gives}
        self.before: Mapping[str, frozenset[str]] = {
            name: frozenset(self.makers[key] for key in job.needs) for name, job in self.jobs.items()
        }
        after: dict[str, list[str]] = {name: [] for name in self.jobs}
        for name, earlier in self.before.items():
            for other in earlier:
                after[other].append(name)
        self.after: Mapping[str, Sequence[str]] = after

    @cached_property
    def order(self) -> tuple[str, ...]:
        """An order in which the jobs can run one after another."""
        return tuple(TopologicalSorter(self.before).static_order())

    @cached_property
    def ranks(self) -> Mapping[str, float]:
        """Seconds from the start of a job to the end of the longest chain that waits for it."""
        ranks: dict[str, float] = {}
        for name in reversed(self.order):
            later = max((ranks[other] for other in self.after[name]), default=0.0)
            ranks[name] = self.jobs[name].weight.seconds + later
        return ranks

    @cached_property
    def urgency(self) -> Mapping[str, int]:
        """The place of each job in the order of urgency: the longest chain first, then the largest, else as given."""
        ordered = sorted(self.jobs, key=lambda name: (-self.ranks[name], -self.jobs[name].weight.memory))
        return {name: place for place, name in enumerate(ordered)}

    @property
    def cost(self) -> GraphCost:
        return GraphCost(
            len(self.jobs),
            sum(job.weight.seconds for job in self.jobs.values()),
            max(self.ranks.values(), default=0.0),
        )

    def to_do(self, finished: frozenset[str]) -> frozenset[str]:
        """The jobs that have to run where these outputs exist: an input that nobody needs any more is not fetched."""
        wanted = [name for name, later in self.after.items() if not later]
        found: set[str] = set()
        while wanted:
            name = wanted.pop()
            job = self.jobs[name]
            if name in found or finished.issuperset(job.gives):
                continue
            found.add(name)
            wanted += [self.makers[key] for key in job.needs if key not in finished]
        return frozenset(found)

    def ancestors(self, name: str) -> set[str]:
        """All jobs that a job waits for, also by way of others."""
        found: set[str] = set()
        wanted = [name]
        while wanted:
            for other in self.before[wanted.pop()]:
                if other not in found:
                    found.add(other)
                    wanted.append(other)
        return found

    def part(self, names: frozenset[str]) -> JobGraph:
        """The graph of these jobs alone; what they need of others is taken as there."""
        return _Part(self, names)


class _Part(JobGraph):
    """Some jobs of a graph, with the needs that other jobs have fulfilled left out."""

    def __init__(self, whole: JobGraph, names: frozenset[str]) -> None:
        self.jobs = {name: job for name, job in whole.jobs.items() if name in names}
        self.makers = {key: name for key, name in whole.makers.items() if name in names}
        self.before = {name: whole.before[name] & names for name in self.jobs}
        self.after = {name: [other for other in whole.after[name] if other in names] for name in self.jobs}
