"""A job: work as a value, which can be sent to another machine; what it needs and gives is named by keys."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import msgspec

from torchtailor.core.errors import BadInputError
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
        return msgspec.json.decode(data, type=kinds)
    except msgspec.MsgspecError as error:
        raise BadInputError(
            f"This is not a job of torchtailor: {error}.", "Use the same version on every machine."
        ) from error
