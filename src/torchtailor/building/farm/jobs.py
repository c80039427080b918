"""All jobs that a farm may send to a worker."""

from __future__ import annotations

import hashlib
import tomllib

import msgspec

from torchtailor.building.nix.derivations import RealiseDerivation
from torchtailor.building.source.jobs import CompileShard, LinkSource, SourceJob
from torchtailor.building.wheel_jobs import WheelJob
from torchtailor.catalog import Catalog

FarmJob = WheelJob | SourceJob | RealiseDerivation
# The parts of the user's file that say where and what is built, not what anything is.
_CHOICES = ("farm", "method", "tailor")


def own_rows(catalog: Catalog) -> str:
    """A digest of the rows that the user's file adds to the catalog, which decide what is compiled and how it is
    judged; empty where it adds none."""
    if catalog.user_file is None:
        return ""
    tables = tomllib.loads(catalog.user_file.read_text("utf-8"))
    rows = {name: table for name, table in tables.items() if name not in _CHOICES}
    return hashlib.sha256(msgspec.json.encode(rows, order="deterministic")).hexdigest() if rows else ""


def inputs_of(job: FarmJob) -> tuple[str, ...]:
    """The keys of outputs whose files a job is made of; others that it needs only have to be done before it."""
    return (job.spec.tree,) if isinstance(job, CompileShard | LinkSource) else job.needs
