"""Numbers as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def human_bytes(size: float) -> str:
    """1044000000 -> `1.04 GB` (decimal units, three significant digits)."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def human_seconds(seconds: float) -> str:
    """75.2 -> `1 min 15 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 90:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 library`, `2 libraries`; the plural is made with an s where none is given."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, for a report or a page."""
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    lines += [f"| {' | '.join(cells)} |" for cells in ([_in_cell(text) for text in row] for row in rows)]
    return "\n".join(lines) + "\n"


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# what a terminal acts upon, or what makes text read otherwise than it is: C0 and C1, bidirectional marks, surrogates
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Text from elsewhere as it may be shown: what a terminal would obey is spelt out, such as `\\x1b`."""
    return _INVISIBLE.sub(_spelt, text)


def printable_json(text: str) -> str:
    """A JSON document with that escaped, which it may be in any text of it."""
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _spelt(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
