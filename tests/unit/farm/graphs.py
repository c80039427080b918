"""Small graphs for tests of the policy: jobs that only have a name, inputs and a weight."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from torchtailor.building.graph.graph import GraphJob, JobGraph, JobWeight
from torchtailor.building.wheel_jobs import ProveVariant


class NamedJob(GraphJob):
    """A job whose needs and outputs are given; it is never run."""

    @classmethod
    def make(cls, name: str, needs: Sequence[str], seconds: float, memory: int) -> NamedJob:
        job = cls(ProveVariant("", name, None), name, JobWeight(seconds, memory), (name,))
        job.__dict__["needs"] = tuple(map(key, needs))
        job.__dict__["gives"] = (key(name),)
        return job


def key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def graph(edges: Mapping[str, Sequence[str]], *, seconds: float = 1.0, memory: int = 1) -> JobGraph:
    return JobGraph(NamedJob.make(name, needs, seconds, memory) for name, needs in edges.items())
