"""Numbers as people read them."""

from __future__ import annotations


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
