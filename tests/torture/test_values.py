"""Each option of each command with hostile values: never "this is a bug", never a traceback."""

from __future__ import annotations

import pytest

from tests.torture.harness import run_class
from tests.torture.values import EveryOption, parameters


def test_every_option_once() -> None:
    """In one process that imports all commands once; another value each time the seed changes."""
    options = [row for row in parameters() if not row.flag and row.command not in EveryOption.leave_out]
    row = run_class(EveryOption(), 3, range(len(options)))
    assert not row.failures, "\n".join(row.failures)
    assert row.tries == len(options) > 150
    assert row.ends["usage"] > 20 and row.ends["ok"] > 5  # the lines work, and the values are refused


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_option_often(seed: int) -> None:
    row = run_class(EveryOption(), seed, range(4 * len(parameters())))
    assert not row.failures, "\n".join(row.failures)
