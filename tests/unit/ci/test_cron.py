"""Lines of a schedule: every value that a field has is taken, and none that it has not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtailor.publish.ci.cron import CRON_FIELDS, CronField, cron_problem

STARS = ["*"] * 5


def values(field: CronField) -> st.SearchStrategy[str]:
    """Values that a field takes: numbers and names, ranges of them, steps, and lists of all that."""
    numbers = st.integers(field.least, field.most)

    def word(number: int, named: bool) -> str:
        return field.words[number - field.least].lower() if named and field.words else str(number)

    one = st.builds(word, numbers, st.booleans())
    span = st.builds(
        lambda ends, named: "-".join(word(end, named) for end in sorted(ends)),
        st.tuples(numbers, numbers),
        st.booleans(),
    )
    part = st.one_of(st.just("*"), one, span)
    stepped = st.builds(lambda text, step: f"{text}/{step}", part, st.integers(1, field.most))
    return st.lists(st.one_of(part, stepped), min_size=1, max_size=4).map(",".join)


@given(st.tuples(*map(values, CRON_FIELDS)).map(" ".join))
def test_what_fields_may_hold_is_taken(line: str) -> None:
    assert cron_problem(line) == ""


@given(st.integers(0, 4), st.data())
def test_what_is_out_of_range_is_refused_by_the_name_of_its_field(place: int, data: st.DataObject) -> None:
    field = CRON_FIELDS[place]
    bad = data.draw(st.one_of(st.integers(field.most + 1, 999), st.integers(-9, field.least - 1)))
    text = data.draw(st.sampled_from([f"{bad}", f"{field.least},{bad}", f"{field.least}-{bad}", f"{bad}/2"]))
    line = " ".join([*STARS[:place], text, *STARS[place + 1 :]])
    assert cron_problem(line).startswith(f"the {field.name} ")


@given(st.text(max_size=20))
def test_no_text_is_too_odd(text: str) -> None:
    assert cron_problem(text)  # five fields need nine letters and blanks, which chance does not find


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("daily", "1 fields"),
        ("* * * *", "4 fields"),
        ("*/0 * * * *", "no step from 1 to 59"),
        ("*/ * * * *", "no step"),
        ("5-1 * * * *", "ends before it begins"),
        ("* * * foo *", "or JAN to DEC"),
        ("* * * * fri-mon", "ends before it begins"),
        ("* * * * 7", "from 0 to 6, or SUN to SAT"),
        ("1,,2 * * * *", "'' is not of numbers"),
        ("\u0663 * * * *", "is not of numbers"),
        ("@daily * * * *", "is not of numbers"),
    ],
)
def test_what_is_said(line: str, said: str) -> None:
    assert said in cron_problem(line)
