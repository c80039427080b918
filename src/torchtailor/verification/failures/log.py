"""Log lines, streamed: whatever tool wrote them, as that tool's compiler would have printed them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

# Command lines of a link run to megabytes; what matters is at the front.
MAX_LINE = 4096
_BLOCK = 1 << 16
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# What tools put before a line of the program they run: docker's step and seconds, nix's and flox's package, CI's clock,
# the rank or process of a distributed program, the loggers of torch, vLLM and SGLang, pytest's mark of an error.
_PREFIX = re.compile(
    r"#\d{1,6} (?:\d{1,9}\.\d{1,9} )?|\[?[\w.+-]{1,200}\]?> |\d{4}-\d\d-\d\d[T ][\d:.,]{1,30}Z? "
    r"|(?:\(\w{1,40} [\w =]{0,40}pid=\d{1,9}\) )?\[\d{4}-\d\d-\d\d[ T][\d:., A-Z]{8,40}\] (?:\[\w{4,8}\] )?"
    r"|[IWEFC]\d{4} \d\d:\d\d:[\d.]{2,12} [^\]]{1,200}\] ?(?:\[[\w/]{1,12}\]:? ?)?"
    r"|\s{0,40}│\s?|\s{1,40}> |\[rank\d{1,5}\]: ?|E   {1,60}"
    r"|(?:\(\w{1,40} [\w =]{0,40}pid=\d{1,9}\) ?)?(?:ERROR|WARNING|INFO) \d\d-\d\d [\d:]{8} [^\]]{1,80}\] ?"
    r"|\(\w{1,40} [\w =]{0,40}pid=\d{1,9}\) "
)
# A line that its program marks as a warning or less; pip's (`WARNING: `) say why it ends.
_PASSING = re.compile(
    rb"(?:\(\w{1,40} [\w =]{0,40}pid=\d{1,9}\) ?)?\[?(?:WARNING|WARN|INFO|DEBUG)\b(?!: )"
    rb"|[^'\"]{0,300}\b(?:User|Future|Deprecation|Runtime|Import|Resource)?Warning: "
    rb"|\d{4}-\d\d-\d\d[T ][\d:.,]{1,30}Z? (?:\S{1,80} )?-? ?\[?(?:WARNING|WARN|INFO|DEBUG)\b"
)
# What an error looks like, whoever says it; the words of a healthy log (`0 failed`, a test's name) do not.
_ERROR_LIKE = re.compile(
    r"^[EF]\d{4} \d\d:\d\d:\d\d\.\d|\bERR!|\bERROR_[A-Z]{3}"
    r"|(?<!no )(?<!0 )\b(?i:error|fatal|exception)"
    r"(?:\[\w{1,20}\]| \d{3,5}\b|[ \w*]{0,12}:(?!:| ?(?:0\b|none\b|[\d.]{1,20} ?%?(?:,|$))))"
    r"|(?<!0 )\b(?i:failed)\b(?![=:] ?0\b)|\b[A-Z]\w{2,60}(?:Error|Exception)(?::(?!:)|\s*$)"
    r"|[Nn]o such file or directory|[Pp]ermission denied|command not found|core dumped"
    r"|\b(?:[Cc]annot|[Cc]ould not|aborted) "
)
_NINJA = re.compile(r"\[(\d{1,9})/(\d{1,9})\]")
_MAKE = re.compile(r"\[\s{0,3}(\d{1,3})%\]")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log, cleaned."""

    number: int
    text: str


def clean(raw: bytes) -> str:
    """The considered part of a line, without the prefix of the tool around it."""
    text = raw[:MAX_LINE].decode("utf-8", "replace")
    prefix = _PREFIX.match(text)
    return text[prefix.end() :] if prefix else text


def in_passing(raw: bytes) -> bool:
    """Whether a program said this and went on."""
    return _PASSING.match(raw) is not None


def looks_like_an_error(raw: bytes) -> bool:
    """Whether a line reads as an error of some program; a compiler's command, CMake's status and a warning do not."""
    return (
        not raw.startswith((b"-- ", b"[", b" -- "))
        and not in_passing(raw)
        and _ERROR_LIKE.search(raw[:MAX_LINE].decode("utf-8", "replace")) is not None
    )


def blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """The stream in pieces of whole lines without colour codes, of bounded size however long a line is."""
    while piece := stream.read(_BLOCK):
        if not piece.endswith(b"\n"):
            piece += stream.readline(MAX_LINE)
        while not piece.endswith(b"\n") and (rest := stream.readline(_BLOCK)):
            piece += rest[-1:] if rest.endswith(b"\n") else b""
        yield _ANSI.sub(b"", piece) if b"\x1b" in piece else piece


def last_percent(rows: Sequence[bytes]) -> float | None:
    """How far the build was after these lines, where ninja or make report it."""
    reported = (percent(clean(row)) for row in reversed(rows) if b"]" in row)
    return next((value for value in reported if value is not None), None)


def percent(line: str) -> float | None:
    """How far the build was, where ninja or make report it in this line."""
    if match := _NINJA.match(line):
        done, total = int(match[1]), int(match[2])
        return 100 * done / total if total else None
    match = _MAKE.match(line)
    return float(match[1]) if match else None
