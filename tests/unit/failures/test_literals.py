"""Many literals are looked for in one pass, and none is missed."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from torchtailor.verification.failures.diagnosis import diagnose
from torchtailor.verification.failures.known import error_patterns, load_failures
from torchtailor.verification.failures.literals import Literals

KNOWN = [pattern.literal for failure in load_failures() for pattern in failure.patterns]
KNOWN += [pattern.literal for pattern in error_patterns()]


@given(
    st.lists(st.binary(min_size=1, max_size=8), max_size=20),
    st.lists(st.binary(min_size=1, max_size=8), max_size=20),
)
def test_it_is_what_in_says(literals: list[bytes], pieces: list[bytes]) -> None:
    block = b"".join([*pieces, *literals[::2]])
    assert Literals(literals).found_in(block) == {literal for literal in literals if literal in block}


def test_every_known_literal_is_found() -> None:
    literals = Literals(KNOWN)
    for literal in KNOWN:
        assert literal in literals.found_in(b"x" + literal + b"\n")


def test_a_log_takes_seconds_for_a_gigabyte() -> None:
    """16 MB in a second is a GB in 60; a word of a megabyte is no worse than a line."""
    import io

    line = b"[12/99] Building CUDA object caffe2/torch_cuda.dir/x.cu.o -DFOO -I/usr/include warning: some text here\n"
    for log in (line * (16_000_000 // len(line)), b"x" * 4_000_000, b"error " * 600_000):
        began = time.process_time()
        diagnose(io.BytesIO(log))
        assert time.process_time() - began < 2
