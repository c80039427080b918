"""The command line: the table, help, errors as sentences with exit codes."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Never

import pytest

from tests.calling import call
from torchtailor.catalog import Dotted
from torchtailor.cli import COMMANDS, help_text, main
from torchtailor.core.errors import EXIT_MEANINGS, ExitCode


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_is_there_and_helps(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_module(f"torchtailor.cli.{COMMANDS[name].module}")
    assert hasattr(module, "command") or hasattr(module, "app")
    assert main([name, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out
    if hasattr(module, "command"):
        assert module.command.__doc__.splitlines()[0] == COMMANDS[name].summary


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from torchtailor.cli import main; main(['--help']);"
        "print(sorted({'typer','rich','msgspec','tomllib','torchtailor.catalog'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_help_and_version() -> None:
    assert main([]) == 0
    assert all(name in help_text() for name in COMMANDS)
    assert call("--version").stdout.startswith("torchtailor ")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["matrx"], ExitCode.USAGE, "Did you mean `torchtailor matrix`?"),
        (["qqq"], ExitCode.USAGE, "--help"),
        (["matrix", "--nope"], ExitCode.USAGE, "torchtailor matrix --help"),
        (["matrix", "--json", "--csv"], ExitCode.USAGE, "are mutually exclusive"),
        (["matrix", "sm{80"], ExitCode.USAGE, "brace"),
        (["matrix", "zzz*"], ExitCode.NO_MATCH, "No variant matches"),
        (["matrix", "--release", "9.9"], ExitCode.NO_MATCH, "Known: 2.0, 2.1"),
        (["matrix", "--gpu", "Voodoo 2"], ExitCode.NO_MATCH, "compute capability"),
        (["matrix", "--python", "2.7"], ExitCode.NO_MATCH, "3.13"),
        (["matrix", "--why", "sm121"], ExitCode.NO_MATCH, "Names look like"),
        (["recommend", "--gpu", "none", "--gpu", "H100", "--cpu", "zen4"], ExitCode.USAGE, "--gpu none"),
        (["recommend", "--gpu", "GTX 580", "--cpu", "zen4"], ExitCode.NO_MATCH, "Fermi"),
    ],
)
def test_errors_are_sentences_with_a_code(arguments: list[str], code: ExitCode, words: str) -> None:
    result = call(*arguments)
    assert result.returncode == code
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert "Traceback" not in result.stderr + result.stdout


def test_matrix_formats() -> None:
    as_json = json.loads(call("matrix", "--release", "cuda-13_0", "--json").stdout)
    assert as_json["count"] == 59 == len(as_json["variants"])
    rows = list(csv.DictReader(io.StringIO(call("matrix", "--release", "cuda-13_0", "--csv").stdout)))
    assert [row["unique_name"] for row in rows] == [row["unique_name"] for row in as_json["variants"]]
    markdown = call("matrix", "--release", "cuda-13_0", "--markdown").stdout.splitlines()
    assert len(markdown) == 61
    assert "59 variants (59 of 2.10)" in call("matrix", "--release", "cuda-13_0").stdout
    assert "\n1 variant (1 of 2.10)" in call("matrix", "sm90-avx512", "--release", "cuda-13_0").stdout


def test_an_empty_json_is_still_json() -> None:
    done = call("matrix", "zzz*", "--json")
    assert json.loads(done.stdout) == {"schema": "torchtailor-matrix/1", "count": 0, "variants": []}
    assert done.returncode == 3  # as without --json: nothing matches


def test_the_users_file_works_end_to_end(tmp_path: Path) -> None:
    row = '[[row]]\nrelease = "2.15"\ncuda = "13.2"\ngpus = ["8.7"]\ncpus = ["armv8_2"]\n'
    (tmp_path / "torchtailor.toml").write_text(row)
    found = json.loads(call("matrix", "sm87-*", "--json", cwd=tmp_path).stdout)
    assert [v["unique_name"] for v in found["variants"]] == ["pytorch215-python313-cuda13_2-sm87-armv8_2"]
    (tmp_path / "torchtailor.toml").write_text("[[gpu]]\n")
    broken = call("matrix", cwd=tmp_path)
    assert (broken.returncode, "torchtailor.toml" in broken.stderr) == (ExitCode.USAGE, True)


def test_a_closed_pipe_is_no_error() -> None:
    """As with `| head -1`: there is more to write than a pipe holds."""
    line = [sys.executable, "-m", "torchtailor", "matrix", "sm90-*"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096) as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 0)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("matrix --why sm121-avx2", ExitCode.IMPOSSIBLE),
        ("matrix nosuch", ExitCode.NO_MATCH),
        ("matrix sm90-avx2 --json", ExitCode.OK),
        ("matrix sm90-avx2 --csv", ExitCode.OK),
        ("matrix --help", ExitCode.OK),
        ("--help", ExitCode.OK),
        ("tailor none.so -o y.so", ExitCode.NO_MATCH),  # after a line on stderr
    ],
)
def test_a_command_ends_with_its_own_code_whoever_reads(arguments: str, code: ExitCode) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        line = [sys.executable, "-m", "torchtailor", *arguments.split()]
        environment = os.environ | {"TORCH_CUDA_ARCH_LIST": "9.0"}
        result = subprocess.run(line, stdout=writer, stderr=writer, check=False, env=environment)
        assert result.returncode == code
    finally:
        os.close(writer)


def test_a_bug_is_kept_in_a_file_not_shown(tmp_path: Path) -> None:
    code = (
        "import torchtailor.catalog.variants.matrix as m, sys\n"
        "def broken(*a, **k): raise ZeroDivisionError('boom')\n"
        "m.Matrix.variants = broken\n"
        "from torchtailor.cli import main\nsys.exit(main(['matrix']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"TORCHTAILOR_STATE": str(tmp_path), "PATH": ""},
    )
    assert result.returncode == ExitCode.INTERNAL
    assert "Traceback" not in result.stderr
    assert "ZeroDivisionError" in (tmp_path / "last-bug.txt").read_text()


def test_every_exit_code_has_a_meaning() -> None:
    assert set(EXIT_MEANINGS) == set(ExitCode)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--cpu", "avx99"], ExitCode.NO_MATCH, "instruction set"),
        (["--why", "sm90-avx512", "--python", "3.7"], ExitCode.NO_MATCH, "Python '3.7'"),
        (["--why", "sm90-avx512", "sm80-*"], ExitCode.USAGE, "--why"),
    ],
)
def test_matrix_refuses_what_it_would_ignore(
    arguments: list[str], code: ExitCode, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["matrix", *arguments]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("sm90-avx512", ExitCode.OK),
        ("sm87-armv8_2", ExitCode.OK),  # possible, though no release lists it
        ("sm107-armv9", ExitCode.OK),
        ("sm121-avx2", ExitCode.IMPOSSIBLE),
        ("pytorch215-python313-cuda13_2-sm70-avx2", ExitCode.IMPOSSIBLE),
    ],
)
def test_why_tells_scripts_whether_a_variant_is_possible(name: str, code: ExitCode) -> None:
    assert main(["matrix", "--why", name]) == code


@pytest.mark.parametrize(
    "line",
    [
        "E0318 09:59:50.207221       1 factory.go:77] the plugin did not start: ERROR_NOVEL.",
        "tool: error: task 0 launch: Unspecified",
        "Error: Error acquiring the state lock",
        "****FooMemMgrInit failed**** type: 196626",
        "HTTP error 404 Not Found",
        "- **Exception Type:** RuntimeError",
    ],
)
def test_a_short_log_with_a_line_that_looks_like_an_error_is_not_known(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.write_text(f"Starting plugins.\n{line}\nSee the prerequisites.\n")
    assert main(["doctor", "--no-run", str(log)]) == ExitCode.NO_MATCH
    shown = capsys.readouterr().out
    assert "This message is not known: " in shown and "No error" not in shown
    log.write_text("Compiling one file of many\n" * 200 + f"{line}\n" * (not line.startswith("Error: ")))
    assert main(["doctor", "--no-run", str(log)]) == ExitCode.OK


@pytest.mark.parametrize("message", ["-bash: torchtailor-novel: it is odd", "- **Type:** novel", "-x: novel"])
def test_a_message_may_begin_with_a_dash(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", message, "--no-run"]) == ExitCode.NO_MATCH
    assert "This message is not known" in capsys.readouterr().out
    assert main(["doctor", "--novel"]) == ExitCode.USAGE


def test_one_line_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("all is well\n")
    assert main(["doctor", str(tmp_path / "log")]) == ExitCode.OK
    assert capsys.readouterr().out == "ok       No error in 1 line.\n"


def test_a_wrong_subcommand_is_said_plainly(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "wrte"]) == ExitCode.USAGE
    assert "Did you mean 'write'?\n" in capsys.readouterr().err
    assert main(["recipes", "write"]) == ExitCode.USAGE
    assert "`torchtailor recipes write --help`" in capsys.readouterr().err


def test_help_cuts_no_sentence_and_doubles_no_bracket(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["recipes"], ["recipes", "write"], ["recipes", "hash"], ["matrix"], ["doctor"], ["inspect"]):
        assert main([*command, "--help"]) == 0
        usage = capsys.readouterr().out
        assert "[[" not in usage
        assert not [line for line in usage.splitlines() if line.endswith("...") and "Usage" not in line]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_no_bug() -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "torchtailor", "matrix", "cpu-avx2"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert result.returncode == ExitCode.ENVIRONMENT
    assert "no space left" in result.stderr
    assert "bug" not in result.stderr


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR])
def test_what_the_disk_refuses_is_no_bug(
    code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> Never:
        raise OSError(code, os.strerror(code), "/some/cache/lock")

    monkeypatch.setattr("torchtailor.fetch.cache.Cache.prune", refuse)
    assert main(["cache", "prune"]) == ExitCode.ENVIRONMENT
    said = capsys.readouterr().err
    assert f"/some/cache/lock cannot be used: {os.strerror(code).lower()}." in said and "bug" not in said


def test_a_working_directory_that_is_gone_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["matrix", "sm90-avx2"]) == ExitCode.ENVIRONMENT
    assert "The working directory does not exist any more." in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_narrow_table_keeps_its_numbers_and_its_result(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    from rich.console import Console

    from torchtailor.cli.ui import console

    window = Console(file=io.StringIO(), width=width, highlight=False)
    monkeypatch.setattr(console, "out", lambda: window)
    wheel = "nvidia_cusparselt_cu12-0.7.1-py3-none-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
    row = (wheel, "1.04 GB", "229 MB", "22 %", "copied unchanged")
    window.print(console.table(("Input", "Before", "After", "Left", "Result"), [row]))
    drawn = window.file.getvalue()  # type: ignore[attr-defined]
    lines = drawn.splitlines()
    assert max(len(line) for line in lines) <= width
    assert any("1.04 GB" in line and "229 MB" in line and "22 %" in line for line in lines)
    assert all(word in drawn for word in ("Before", "After", "Result", "copied", "unchanged"))
    folded = "".join(line.split("  ")[0].strip() for line in lines[3:])
    assert "".join(folded.split()).startswith(wheel[:20])


def test_a_table_that_fits_is_drawn_as_rich_would_measure_it() -> None:
    from rich.console import Console

    from torchtailor.cli.ui import console

    rows = [("a", "1", ""), ("bcd \u4e2d\u6587", "1000", "x y"), ("", "", "long words and more")]
    drawn = []
    for natural in (True, False):
        window = Console(file=io.StringIO(), width=100)
        window.print(console._table(("Name", "Number", "Text"), rows, "Title", natural=natural))
        drawn.append(window.file.getvalue())  # type: ignore[attr-defined]
    assert drawn[0] == drawn[1]


def test_lines_of_a_window_have_no_spaces_at_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console
    from rich.text import Text

    from torchtailor.cli.ui import console

    window = Console(file=io.StringIO(), width=40, force_terminal=True, color_system=None)
    monkeypatch.setattr(console, "out", lambda: window)
    text = "  - PyTorch 2.15.0 with CUDA 13.2 and a few more words than a line of the window holds"
    window.print(console.hanging(Text(text), 4))
    lines = window.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) > 2 and all(line == line.rstrip() for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])
    assert " ".join(" ".join(lines).split()) == text.strip()


def test_an_option_for_the_result_of_a_command_that_names_it_behind_its_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["image", "oci:a:b", "-o", "oci:c:d"]) == ExitCode.USAGE
    assert "`torchtailor image SOURCE DESTINATION`" in " ".join(capsys.readouterr().err.split())


def test_lines_of_a_plan_hang_below_their_first_word(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from torchtailor.building.shown import Line
    from torchtailor.cli import _build_output, ui
    from torchtailor.cli.ui import console

    window = Console(file=io.StringIO(), width=30, highlight=False, force_terminal=True)
    monkeypatch.setattr(console, "out", lambda: window)
    monkeypatch.setattr(ui, "err", lambda: window)
    _build_output.show([Line("  a note of several words, which a window folds")])
    lines = window.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 2
    assert all(line.startswith("  ") and line[2] != " " for line in lines)


def test_diff_sums_up_the_code_that_did_not_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtailor.cli import diff
    from torchtailor.verification.sizes.compare import SizeChange

    class Comparison:
        packages = classes = causes = functions = ()
        architectures = tuple(SizeChange(f"sm_{number}", 10, 10 + number // 60) for number in range(50, 70))
        total = SizeChange("", 9, 9, None, None)

    shown: dict[str, list[str]] = {}

    def table(title: str, changes: list[SizeChange], top: int) -> None:
        shown[title] = [one.name for one in changes[:top]]

    monkeypatch.setattr(diff, "_table", table)
    diff._print(Comparison(), 3)  # type: ignore[arg-type]
    assert shown["Code for"] == [f"sm_{number}" for number in range(60, 70)]


def test_the_matrix_counts_by_release_and_says_how_to_see_fewer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "sm80-avx2"]) == ExitCode.OK
    counts = capsys.readouterr().out.splitlines()[-1]
    assert counts.index("of 2.7") < counts.index("of 2.10") < counts.index("of 2.15")
    assert main(["matrix", "--python", "3.8"]) == ExitCode.OK  # all of them take seconds
    assert "--release, --gpu and --cpu show fewer" in capsys.readouterr().out.splitlines()[-1]
    assert main(["matrix", "sm80-avx2", "--json"]) == ExitCode.OK
    versions = [Dotted(row["pytorch"]) for row in json.loads(capsys.readouterr().out)["variants"]]
    assert versions == sorted(versions)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_matrix_is_readable_in_any_window(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    from rich.console import Console

    from torchtailor.cli.ui import console

    window = Console(file=io.StringIO(), width=width, highlight=False)
    monkeypatch.setattr(console, "out", lambda: window)
    row = ("pytorch210-python313-cuda13_0-sm90-avx512", "2.10", "2.10.0", "wheel, source, nix")
    window.print(console.table(("name", "release", "PyTorch", "methods"), [row], optional=("PyTorch", "release")))
    drawn = window.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in drawn for word in (row[0], "wheel,", "nix"))
    assert (" 2.10 " in drawn) is (width >= 80)


def test_an_optional_column_is_left_out_where_it_is_empty_and_may_be_absent() -> None:
    from torchtailor.cli.ui import console

    for rows, shown in (([("a", "")], ["name"]), ([("a", ""), ("b", 5)], ["name", "size"])):
        drawn = console.table(("name", "size"), rows, optional=("elsewhere", "size"))
        assert [column.header for column in drawn.columns] == shown


@pytest.mark.parametrize(
    ("sizes", "shown", "little"),
    [
        ([5_000_000, 200_000, 3, 2, 1], 2, 3),
        ([5_000_000, 3], 2, 0),  # one row is no longer than "1 others"
        ([9] * 10, 10, 0),  # few, and nothing larger
        ([9] * 40, 0, 40),
    ],
)
def test_what_is_small_is_one_row(sizes: list[int], shown: int, little: int) -> None:
    from torchtailor.cli.ui import apart

    assert tuple(map(len, apart(sizes, lambda size: size))) == (shown, little)


def test_libraries_keep_their_names_in_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their architectures took the room: `…ngines_precompiled.so.9`; and dozens of small ones are one row."""
    from rich.console import Console

    from torchtailor.cli import _cut
    from torchtailor.cli.ui import console
    from torchtailor.surgery.result import CodeTally, LibraryResult, LibraryStatus

    kept = dict.fromkeys(("compute_75", "compute_80", "lto_75", "sm_90"), CodeTally(1, 9))

    def cut(path: str, before: int, after: int) -> tuple[LibraryResult, str]:
        one = LibraryResult.not_read(LibraryStatus.CUT, path, before, "")
        return replace(one, size_after=after, kept=kept), ""

    window = Console(file=io.StringIO(), width=80, highlight=False)
    monkeypatch.setattr(console, "out", lambda: window)
    names = ["nvidia/cudnn/lib/libcudnn_engines_precompiled.so.9", "torch/lib/libtorch_cuda_linalg.so"]
    small = [cut(f"torch/lib/libsmall{number}.so", 50_000, 40_000) for number in range(30)]
    window.print(_cut.library_table([*(cut(name, 245_000_000, 95_800_000) for name in names), *small]))
    drawn = window.file.getvalue()  # type: ignore[attr-defined]
    assert "libcudnn_engines_precompiled.so.9" in drawn and names[1] in drawn
    assert "30 others" in drawn and "libsmall" not in drawn and "1.2 MB" in drawn
    assert max(map(len, drawn.splitlines())) <= 80


def test_groups_of_commands_list_them_in_whole_sentences() -> None:
    for name in ("farm", "trace", "catalog", "recipes"):
        said = call(name)
        assert said.returncode == ExitCode.OK
        commands = said.stdout.partition("Commands:\n")[2].splitlines()
        assert commands and all(line.endswith(".") and not line.endswith("...") for line in commands)


def test_a_plan_in_80_columns_keeps_the_names_of_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they are from took the room: `typing-extensio` and `ns` stood in two lines."""
    from rich.console import Console

    from torchtailor.building.shown import Rows
    from torchtailor.cli import _build_output, ui
    from torchtailor.cli.ui import console

    window = Console(file=io.StringIO(), width=80, highlight=False)
    monkeypatch.setattr(console, "out", lambda: window)
    monkeypatch.setattr(ui, "out", lambda: window)
    columns = ("wheel", "version", "size", "download", "treatment", "from")
    row = ("typing-extensions", "2.13.0+cpu", "45.6 kB", "cached", "unchanged", "/root/.config/pip/pip.conf")
    _build_output.show([Rows(columns, [row], result=True)])
    drawn = window.file.getvalue()  # type: ignore[attr-defined]
    assert "typing-extensions" in drawn and "unchanged" in drawn
    assert max(map(len, drawn.splitlines())) <= 80
