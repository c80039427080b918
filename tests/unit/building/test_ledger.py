"""The ledger keeps every attempt, also of processes that were killed, and survives bad files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torchtailor.building.ledger.history import as_markdown, attempt_columns
from torchtailor.building.ledger.ledger import Ledger, Result
from torchtailor.catalog.methods import NIX, SOURCE, WHEEL
from torchtailor.core.disk import state_folder
from torchtailor.core.errors import EnvironmentProblem, NetworkError


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "state" / "ledger.sqlite")


def test_records_a_finished_attempt(ledger: Ledger) -> None:
    with ledger.attempt("sm90-avx512", WHEEL, options={"nvidia": True}, configuration={"torch": "2.8.0"}) as running:
        running.input_bytes, running.output_bytes = 10, 4
        running.configuration["python"] = "3.13"
    (attempt,) = ledger.attempts()
    assert (attempt.variant, attempt.method, attempt.result) == ("sm90-avx512", WHEEL, Result.DONE)
    assert attempt.options == {"nvidia": True}
    assert attempt.configuration == {"torch": "2.8.0", "python": "3.13"}
    assert (attempt.input_bytes, attempt.output_bytes) == (10, 4)
    assert attempt.duration is not None and attempt.duration >= 0


def test_records_the_error_and_its_fix(ledger: Ledger) -> None:
    with pytest.raises(NetworkError), ledger.attempt("a", WHEEL) as running:
        running.stage = "fetch"
        raise NetworkError("The index is away.", "Try again.")
    with pytest.raises(KeyboardInterrupt), ledger.attempt("b", NIX):
        raise KeyboardInterrupt
    with pytest.raises(ZeroDivisionError), ledger.attempt("c", SOURCE):
        _ = 1 // 0
    failed, interrupted, crashed = ledger.attempts()
    assert (failed.result, failed.error_class, failed.error) == (Result.FAILED, "NetworkError", "The index is away.")
    assert (failed.fix, failed.stage) == ("Try again.", "fetch")
    assert interrupted.result is Result.INTERRUPTED
    assert crashed.error_class == "ZeroDivisionError"


def test_a_killed_process_is_seen_as_killed(ledger: Ledger) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\n"
        "from torchtailor.building.ledger.ledger import Ledger\nfrom torchtailor.catalog import WHEEL\n"
        "with Ledger(Path(sys.argv[1])).attempt('v', WHEEL):\n    print('on', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(ledger.path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        assert ledger.attempts()[0].result is Result.RUNNING
        os.kill(process.pid, signal.SIGKILL)
    assert ledger.attempts()[0].result is Result.KILLED


def test_many_writers_lose_nothing(ledger: Ledger) -> None:
    def one(number: int) -> None:
        with Ledger(ledger.path).attempt(f"v{number}", WHEEL):
            pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(40)))
    attempts = ledger.attempts()
    assert {attempt.variant for attempt in attempts} == {f"v{number}" for number in range(40)}
    assert all(attempt.result is Result.DONE for attempt in attempts)


def test_filter_limit_and_order(ledger: Ledger) -> None:
    for variant in ("a", "b", "a", "a"):
        with ledger.attempt(variant, WHEEL):
            pass
    assert [attempt.number for attempt in ledger.attempts(variant="a", limit=2)] == [3, 4]


def test_no_ledger_yet_is_no_attempts_and_makes_no_file(ledger: Ledger) -> None:
    assert ledger.attempts() == ()
    assert not ledger.path.exists()


def test_a_damaged_or_newer_file_is_a_clear_error(ledger: Ledger) -> None:
    import sqlite3

    ledger.path.parent.mkdir()
    ledger.path.write_bytes(b"this is no database" * 100)
    with pytest.raises(EnvironmentProblem, match="cannot be used"):
        ledger.attempts()
    ledger.path.unlink()
    connection = sqlite3.connect(ledger.path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(EnvironmentProblem, match="newer torchtailor"):
        ledger.attempts()


def test_a_ledger_that_breaks_meanwhile_does_not_change_the_result(ledger: Ledger) -> None:
    with pytest.raises(NetworkError, match="The index is away"), ledger.attempt("a", WHEEL):
        ledger.path.write_bytes(b"garbage" * 1000)
        raise NetworkError("The index is away.", "Try again.")
    ledger.path.unlink()
    with ledger.attempt("b", WHEEL):
        ledger.path.write_bytes(b"garbage" * 1000)


def test_markdown_escapes_cells(ledger: Ledger) -> None:
    with pytest.raises(NetworkError), ledger.attempt("v", WHEEL, configuration={"nvidia": True, "x": None}):
        raise NetworkError("a | b\nc", "fix it")
    attempts = ledger.attempts()
    table = as_markdown(attempt_columns(attempts), attempts)
    assert "| nvidia=on | failed | " in table and " | NetworkError: a \\| b c | fix it |" in table
    assert table.splitlines()[2].endswith("| fix it |")


def test_state_directory_follows_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHTAILOR_STATE", str(tmp_path))
    assert state_folder() == tmp_path
