"""Times of a schedule, as cron and GitHub write them: five fields of numbers, names, ranges, lists and steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CronField:
    """One of the five fields, and what it may hold."""

    name: str
    least: int
    most: int
    words: tuple[str, ...] = ()  # for the numbers from `least` on

    def problem(self, text: str) -> str:
        """What is wrong with a value of this field; empty where nothing is."""
        return next((why for part in text.split(",") if (why := self._part_problem(part))), "")

    def _part_problem(self, part: str) -> str:
        span, slash, step = part.partition("/")
        if slash and not (_is_number(step) and 1 <= int(step) <= self.most):
            return f"{part!r} has no step from 1 to {self.most}"
        if span == "*":
            return ""
        first, dash, last = span.partition("-")
        ends = [self._number(word) for word in ((first, last) if dash else (first,))]
        if None in ends:
            words = f", or {self.words[0]} to {self.words[-1]}" if self.words else ""
            return f"{part!r} is not of numbers from {self.least} to {self.most}{words}"
        return f"{part!r} ends before it begins" if dash and ends != sorted(ends, key=lambda end: end or 0) else ""

    def _number(self, word: str) -> int | None:
        if word.upper() in self.words:
            return self.least + self.words.index(word.upper())
        return int(word) if _is_number(word) and self.least <= int(word) <= self.most else None


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 2


CRON_FIELDS = (
    CronField("minute", 0, 59),
    CronField("hour", 0, 23),
    CronField("day of the month", 1, 31),
    CronField("month", 1, 12, ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")),
    CronField("day of the week", 0, 6, ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")),
)


def cron_problem(line: str) -> str:
    """What is wrong with a line of five fields, in words; empty where nothing is."""
    given = line.split()
    if len(given) != len(CRON_FIELDS):
        return f"it has {len(given)} fields and not five"
    for field, text in zip(CRON_FIELDS, given, strict=True):
        if why := field.problem(text):
            return f"the {field.name} {why}"
    return ""
