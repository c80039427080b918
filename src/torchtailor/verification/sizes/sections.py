"""What a page of sizes says of two artifacts: in words, and as tables of what grew, shrank and stayed."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from torchtailor.catalog import load_catalog
from torchtailor.catalog.gpus import CodeKind, CodeTarget, Suffix
from torchtailor.core.format import human_bytes, printable
from torchtailor.verification.inspection.kernels import HOST as HOST_FUNCTIONS
from torchtailor.verification.inspection.measure import Sizes, SizeTotal
from torchtailor.verification.inspection.parts import CONTAINERS
from torchtailor.verification.report.chart import label_order
from torchtailor.verification.report.parts import breakable, section, table
from torchtailor.verification.sizes.compare import KernelChange, SizeChange, SizeComparison, sum_of, unversioned
from torchtailor.verification.sizes.markdown import share, signed

_ROWS, _LEAST = 15, 1  # of a table, at most and at least
_FEW = 4
_CODES = 12  # architectures that are named below a kernel
_WORTH = 0.001  # of everything: smaller changes are one row
_PACKED = "<p>In tables, second lines are sizes as compressed in the wheel.</p>"
_NEXT = 0.01  # of the largest change of a function
_UNPACKED = """<p>Bytes as they are unpacked: in files GPU code is compressed, so these are more than those above.
A row is a function, or all instances of a template, in all libraries and for all architectures together; what became of
it for each architecture stands below. (shared by functions) are headers, symbols and strings.</p>"""
_HELD = "the compiler compresses code in libraries, and what it did the wheel cannot do again."
_NAMED = "<p>As far as symbol tables name them, by the beginning of their names.</p>"


def in_words(comparison: SizeComparison) -> Iterator[str]:
    """The answer at the top of the page, as lines of HTML."""
    total = comparison.total
    line = f"<strong>{signed(total.growth)}</strong>{_became(total)}"
    if packed := _packed(total):
        line += f" Compressed {signed(packed.growth)}{_became(packed)}"
    yield line
    if changed := [one for one in comparison.classes if abs(one.growth) >= _WORTH * total.new][:_FEW]:
        yield f"By kind: {', '.join(f'{one.name} {signed(one.growth)}' for one in changed)}."
    codes = sorted(
        (architecture for architecture in comparison.architectures if architecture.name != CONTAINERS),
        key=lambda one: label_order(one.name),
    )
    went = [
        _went(word, [one.name for one in codes if one.verdict == verdict], side)
        for word, verdict, side in (("New", "new", comparison.new), ("Gone", "gone", comparison.old))
    ]
    if codes:
        yield escape(" ".join(filter(None, went)) or "The architectures are the same as before.")
    if kernels := [function for function in comparison.functions if function.code != HOST_FUNCTIONS]:
        unpacked = sum_of("", kernels)
        yield f"GPU code unpacked: {signed(unpacked.growth)}{_became(unpacked)} {_functions(kernels)}."
        yield _held(comparison, unpacked)


def comparing(comparison: SizeComparison) -> Iterator[str]:
    """What grew and what shrank by itself, by whose it is, by architecture and by function."""
    least = _WORTH * max(comparison.total.old, comparison.total.new)
    if _packed(comparison.total):
        yield _PACKED
    inside = {
        name: ", ".join(f"{part.name} {human_bytes(abs(part.growth))}" for part in parts[:_FEW])
        for name, parts in comparison.contents.items()
    }
    yield from _both_ways("What", "What", comparison.causes, below=inside, least=least)
    for what, changes in (
        ("Kind", comparison.classes),
        ("Package", comparison.packages),
        ("File", comparison.files),
    ):
        if sum(abs(change.growth) >= max(least, 1) for change in changes) > 1:
            yield section(f"By {what.lower()}", _table(what, _shown(changes, least=least)))
    if changes := comparison.architectures:
        rows = _shown(changes, rows=len(changes))
        same = (
            {rows[-1].name: names}
            if (names := _names(change.name for change in changes if not _changed(change)))
            else {}
        )
        meaning, unpacked = _meaning(), _unpacked(comparison)
        below = {
            change.name: "; ".join(filter(None, (by.get(change.name) for by in (meaning, unpacked))))
            for change in changes
        }
        yield section("By architecture", _table("Code for", rows, {**below, **same}))
    for what, title, said, host in (
        ("Kernel", "Kernels that", _UNPACKED, False),
        ("Functions", "Host functions that", _NAMED, True),
    ):
        found = _by_name(comparison, host=host)
        if host and (not found or abs(found[0][0].growth) < least):
            continue
        worth = _NEXT * max((abs(one.growth) for one, _ in found), default=0)
        yield from _both_ways(
            what,
            title,
            [one for one, _ in found],
            said,
            {one.name: by for one, by in found},
            least=worth,
        )


def _packed(change: SizeChange) -> SizeChange | None:
    """The change of what is compressed, where both sides are."""
    if change.old_packed is None or change.new_packed is None:
        return None
    return SizeChange(change.name, change.old_packed, change.new_packed)


def _became(change: SizeChange) -> str:
    return f"{share(change)}: {human_bytes(change.old)} became {human_bytes(change.new)}."


def _held(comparison: SizeComparison, unpacked: SizeChange) -> str:
    """`In libraries it takes 19 % of that (before 37 %), in the wheel 14 % (before 18 %)`, and what that means."""
    old, new = (_stored(side) for side in (comparison.old, comparison.new))
    said = []
    for place, before, after in (("libraries", old.size, new.size), ("the wheel", old.packed, new.packed)):
        if after and unpacked.new:
            now = f"in {place} {100 * after / unpacked.new:.0f} %"
            said.append(f"{now} (before {100 * before / unpacked.old:.0f} %)" if before and unpacked.old else now)
    return f"Compressed it takes of that {', '.join(said)}: {_HELD}" if said else ""


def _stored(sizes: Sizes) -> SizeTotal:
    """What all takes whose functions are known."""
    read = {(kernel.library, kernel.code) for kernel in sizes.kernels}
    rows = (row for row in sizes.rows if row.code and (row.file, row.code) in read)
    return functools.reduce(SizeTotal.plus, rows, SizeTotal())


def _unpacked(comparison: SizeComparison) -> Mapping[str, str]:
    """Of architectures, `unpacked 4.01 MB → 142 MB`: what of their change is better or worse compression."""
    by_code: dict[str, list[KernelChange]] = {}
    for function in comparison.functions:
        by_code.setdefault(function.code, []).append(function)
    sums = (sum_of(code, each) for code, each in by_code.items())
    return {one.name: f"unpacked {human_bytes(one.old)} → {human_bytes(one.new)}" for one in sums}


def _went(word: str, codes: Sequence[str], sizes: Sizes) -> str:
    """`New: code for sm_103, sm_110 (libnvjpeg.so).`; without the libraries where these are many."""
    files = {unversioned(row.file).rpartition("/")[2] for row in sizes.rows if row.code in codes}
    where = f" ({', '.join(sorted(files))})" if len(files) <= _FEW else ""
    return f"{word}: code for {', '.join(codes)}{printable(where)}." if codes else ""


def _both_ways(
    what: str,
    title: str,
    changes: Sequence[SizeChange],
    said: str = "",
    below: Mapping[str, str] | None = None,
    *,
    least: float = 0,
) -> Iterator[str]:
    """What grew and what shrank, each with its sum: together one would hide the other."""
    for word, sign in (("grew", 1), ("shrank", -1)):
        if some := [change for change in changes if change.growth * sign > 0]:
            heading = f"{title} {word}: {signed(sum(one.growth for one in some))}"
            yield section(heading, said + _table(what, _shown(some, least=least), below))
            said = ""


def _shown(changes: Sequence[SizeChange], *, least: float = 0, rows: int = _ROWS) -> Sequence[SizeChange]:
    """What somebody would look at, smaller changes together, and what did not change together."""
    changed = [change for change in changes if _changed(change)]
    shown = [one for place, one in enumerate(changed) if place < _LEAST or abs(one.growth) >= least][:rows]
    rest, same = changed[len(shown) :], [change for change in changes if not _changed(change)]
    if len(rest) == 1:
        shown, rest = changed, []
    together = ((f"{len(rest)} smaller changes", rest), (f"{len(same)} unchanged", same))
    return [*shown, *(sum_of(name, some) for name, some in together if some)]


def _changed(change: SizeChange) -> bool:
    """Also what takes room in the wheel alone, as the records of its zip do."""
    packed = _packed(change)
    return bool(change.growth) or (not change.new and packed is not None and bool(packed.growth))


def _by_name(comparison: SizeComparison, *, host: bool) -> Sequence[tuple[SizeChange, str]]:
    """Functions of all libraries and architectures together, the largest change first, with what they became for each
    architecture and in each library."""
    by_name: dict[str, list[KernelChange]] = {}
    for function in comparison.functions:
        if (function.code == HOST_FUNCTIONS) == host:
            by_name.setdefault(function.name, []).append(function)
    libraries: dict[str, dict[str, list[KernelChange]]] = {name: {} for name in by_name}
    for kernel in comparison.kernels:
        if kernel.growth and (kernel.code == HOST_FUNCTIONS) == host:
            libraries[kernel.name].setdefault(kernel.library, []).append(kernel)
    changes = [
        (sum_of(name, each), "; ".join(filter(None, (_counts(each), _by_library(libraries[name])))))
        for name, each in by_name.items()
    ]
    return sorted(changes, key=lambda change: (-abs(change[0].growth), change[0].name))


def _counts(each: Sequence[KernelChange]) -> str:
    """How many functions there were and are, of GPU code by architecture."""
    return _functions(each) if each[0].code == HOST_FUNCTIONS else _by_code(each)


def _by_code(each: Sequence[KernelChange]) -> str:
    """`8 → 20 functions for each: sm_100 +397 kB, sm_120 +388 kB; unchanged: sm_75`."""
    usual = tuple(_commonest(count for size, count in side if size) for side in zip(*map(_sides, each), strict=True))
    changed = [one for one in each if one.growth]
    stayed = any(one.old for one in each) and any(one.new for one in each)
    said = {one.code: _said_of(one, usual, stayed=stayed) for one in each}
    named = [f"{one.code} {signed(one.growth)}{said[one.code]}" for one in changed[:_CODES]]
    if rest := changed[_CODES:]:
        named.append(f"{len(rest)} more {signed(sum(one.growth for one in rest))}")
    head = ""
    if any(usual):
        others = any("function" in words for words in said.values())
        counted = _counted(*usual)
        if any(not (one.old and one.new) for one in each):  # some came or went, each with its own
            counted = counted.removesuffix(" as before")
        head = f"{counted} for each{' unless said otherwise' if others else ''}: "
    same = _names(one.code for one in each if not one.growth)
    return head + "; ".join(filter(None, (", ".join(named), f"unchanged: {same}" if same else "")))


def _sides(one: KernelChange) -> tuple[tuple[int, int], tuple[int, int]]:
    """Bytes and functions, before and after."""
    return (one.old, one.old_functions), (one.new, one.new_functions)


def _commonest(counts: Iterable[int]) -> int:
    return next((count for count, _ in Counter(counts).most_common(1)), 0)


def _said_of(one: KernelChange, usual: tuple[int, ...], *, stayed: bool) -> str:
    """` (new, 8 functions)`: that it is not as for the other architectures."""
    unlike = any(size and count != common for (size, count), common in zip(_sides(one), usual, strict=True))
    words = ["" if not stayed or (one.old and one.new) else "gone" if one.old else "new"]
    words.append(_functions([one]) if unlike else "")
    return f" ({', '.join(filter(None, words))})" if any(words) else ""


def _by_library(changes: Mapping[str, Sequence[KernelChange]]) -> str:
    """`of this in nvlzcat +6.5 MB, in libnvcomp.so -300 kB`; nothing where only one library has it."""
    if len(changes) < 2:
        return ""
    sums = sorted((sum_of(library, each) for library, each in changes.items()), key=lambda one: -abs(one.growth))
    named = [f"in {one.name.rpartition('/')[2]} {signed(one.growth)}" for one in sums[:_FEW]]
    if rest := sums[_FEW:]:
        named.append(f"in {len(rest)} more {signed(sum(one.growth for one in rest))}")
    return f"of this {', '.join(named)}"


def _names(codes: Iterable[str]) -> str:
    return ", ".join(sorted(codes, key=label_order))


def _functions(kernels: Sequence[KernelChange]) -> str:
    """`8 → 20 functions`, `8 functions as before`."""
    return _counted(sum(kernel.old_functions for kernel in kernels), sum(kernel.new_functions for kernel in kernels))


def _counted(were: int, are: int) -> str:
    if were == are:
        return f"{are:,} function{'s' * (are != 1)} as before"
    return f"{were:,} → {are:,} functions"


def _meaning() -> Mapping[str, str]:
    """Which GPUs the names of architectures stand for."""
    said = {CONTAINERS: "headers around GPU code"}
    for capability, gpu in load_catalog().gpus.items():
        for suffix in Suffix:
            said |= {
                f"{CodeTarget(CodeKind.CUBIN, capability, suffix)}": gpu.describe(),
                f"{CodeTarget(CodeKind.PTX, capability, suffix)}": "PTX, which newer GPUs compile when they load it",
                f"{CodeTarget(CodeKind.LTOIR, capability, suffix)}": "LTO-IR, which is linked when it is loaded",
            }
    return said


def _table(what: str, changes: Iterable[SizeChange], below: Mapping[str, str] | None = None) -> str:
    """A row for each change, and under it what there is to say of it."""
    rows = []
    for change in changes:
        packed = _packed(change) or SizeChange("", 0, 0)
        relative = share(change).strip(" ()") or (change.verdict if change.growth else "")
        figures = (
            (_size(change.old), _size(packed.old)),
            (_size(change.new), _size(packed.new)),
            (signed(change.growth), signed(packed.growth) if packed.old or packed.new else ""),
            (relative, ""),
        )
        cells = "".join(f"<td>{size}{f'<small>{more}</small>' if more else ''}</td>" for size, more in figures)
        more = (below or {}).get(change.name, "")
        rows.append(
            f"<tr{' class=has-more' if more else ''}><th scope=row>{breakable(printable(change.name))}</th>{cells}</tr>"
            + (f"<tr class=more><td colspan=5>{escape(printable(more))}</td></tr>" if more else "")
        )
    return table((what, "Before", "After", "Change", "Relative"), rows, name=f"by-{what.lower().replace(' ', '-')}")


def _size(size: int) -> str:
    return human_bytes(size) if size else ""
