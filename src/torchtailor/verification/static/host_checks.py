"""Host code: nothing that always runs goes beyond the ISA, and the ISA is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torchtailor.catalog import Catalog
from torchtailor.catalog.cpus import Isa
from torchtailor.code.binary.elf_headers import ElfMachine
from torchtailor.code.hostcode.analyse import HostCode, UseGroup
from torchtailor.code.hostcode.features import FeatureTable, feature_table
from torchtailor.code.hostcode.reach import Reach
from torchtailor.code.hostcode.readable import readable
from torchtailor.core.format import counted, human_bytes
from torchtailor.verification.result import Check, CheckOutcome, Level
from torchtailor.verification.static.read import LibraryFacts
from torchtailor.verification.static.stock_code import as_stock_check

_BASE = {ElfMachine.X86_64: "x86-64", ElfMachine.AARCH64: "Armv8.0-A"}
_UNCONDITIONAL = (Reach.STARTUP, Reach.PLAIN)
_SHOWN = 3
_DETAILED = 20


def host_checks(
    libraries: Sequence[LibraryFacts],
    isa: Isa | None,
    catalog: Catalog,
    as_stock: Collection[str] = (),
    *,
    torch: str = "",
) -> Iterator[Check]:
    """One line for the baseline, one for each library that goes beyond what is allowed, and one for the use.

    `as_stock` names the libraries whose instructions are stock's, which is PyTorch of version `torch`.
    """
    read = [(facts.name, facts.host) for facts in libraries if facts.host is not None]
    unread = [facts for facts in libraries if facts.host is None and facts.name in as_stock]
    yield from _as_stock(unread, isa, catalog, torch)
    if not read:
        if not unread:
            yield Check.not_applicable(Level.STATIC, "host code", "no library holds code for x86_64 or aarch64")
        return
    machines = {host.machine for _, host in read}
    for machine in sorted(machines):
        of_machine = [(name, host) for name, host in read if host.machine is machine]
        yield _baseline(of_machine, machine, catalog)
        if isa is not None and isa.arch == machine.arch:
            yield from _within(of_machine, isa, as_stock)
            if not unread:
                yield _used(of_machine, isa)
        yield from _unattributed(of_machine, isa)
    if isa is not None and isa.arch not in {machine.arch for machine in machines}:
        found = ", ".join(machine.arch for machine in sorted(machines))
        reason = f"the libraries are for {found}, and {isa.label} is {isa.arch}"
        yield Check.of(Level.STATIC, f"host code within {isa.name}", False, reason)


def _as_stock(unread: Sequence[LibraryFacts], isa: Isa | None, catalog: Catalog, torch: str) -> Iterator[Check]:
    """What has the instructions of an official wheel is not read again; the catalog has what is known of these."""
    if not unread:
        return
    yield as_stock_check([facts.name for facts in unread])
    if isa is None or not any(facts.name.startswith("torch/") for facts in unread):
        return
    name = f"host code within {isa.name}: official wheel"
    release = next((release for release in catalog.releases.values() if str(release.version) == torch), None)
    has = feature_table(ElfMachine[isa.arch.upper()]).closure(isa.requires)
    missing = release.missing_for_wheel(isa.arch, has) if release else None
    if release is None or missing is None:
        reason = f"what the official wheel needs is not in the catalog: --cpu {isa.name} reads it"
        yield Check.not_applicable(Level.STATIC, name, reason)
    elif missing:
        reason = f"loading PyTorch {torch} needs {', '.join(missing)}, which {isa.label} does not have"
        yield Check.of(Level.STATIC, name, False, reason, beyond=list(missing))
    elif exceptions := release.wheel_exceptions(isa.arch, has):
        _, text = exceptions
        reason = f"PyTorch {torch} loads on {isa.label}, but {text} --via source avoids it"
        yield Check.not_applicable(Level.STATIC, name, reason)
    else:
        reason = f"PyTorch {torch} loads on {isa.label} and selects its kernels at run time"
        yield Check.of(Level.STATIC, name, True, reason)


def _baseline(read: Sequence[tuple[str, HostCode]], machine: ElfMachine, catalog: Catalog) -> Check:
    """What a CPU must have to load it, and to run what is behind no dispatch: reported, not judged."""
    table = feature_table(machine)
    base = _BASE[machine]
    words = frozenset(word for _, host in read for word in host.needs(*_UNCONDITIONAL))
    loading = frozenset(word for _, host in read for word in host.needs(Reach.STARTUP))
    functions = sum(host.functions for _, host in read)
    size = sum(host.code_bytes for _, host in read)
    dispatched = Counter[str]()
    for _, host in read:
        dispatched.update(host.families)
    where = counted(len(read), "library", "libraries")
    reason = f"{functions} functions in {where} ({human_bytes(size)} of code): "
    if words:
        reason += f"loading needs {base} and {_needed(read, loading, table, Reach.STARTUP) if loading else 'no more'}"
        if plain := sum(host.count(Reach.PLAIN) for _, host in read):
            unguarded = frozenset(word for _, host in read for word in host.needs(Reach.PLAIN))
            needs = "needs" if plain == 1 else "need"
            reason += f"; {plain} behind no dispatch {needs} {_needed(read, unguarded, table, Reach.PLAIN)}"
        reason += f"; {who_has(words, machine, table, catalog)}"
    else:
        reason += f"what always runs needs {base} and no more"
    if dispatched:
        behind = table.strongest({word for _, host in read for word in host.needs(Reach.DISPATCHED, Reach.GUARDED)})
        reason += f"; {dispatched.total()} functions behind run-time dispatch go up to {', '.join(behind)}"
    return Check.of(
        Level.STATIC,
        f"host code: baseline ({machine.arch})",
        True,
        reason,
        baseline=table.strongest(words),
        needs=table.sorted(words),
        loading=table.strongest(loading),
        dispatched=dict(dispatched),
        functions=functions,
        code_bytes=size,
    )


def who_has(words: frozenset[str], machine: ElfMachine, table: FeatureTable, catalog: Catalog) -> str:
    """The ISAs whose every CPU has these words; where there is none, the cores that do."""
    isas = [i.name for i in catalog.isas.values() if i.arch == machine.arch and words <= table.closure(i.requires)]
    if isas:
        return f"every CPU of {', '.join(isas)} has that"
    cores = [
        core.name
        for core in catalog.microarchitectures.values()
        if core.arch == machine.arch and words <= table.closure(core.flags)
    ]
    return "no ISA of the catalog has all of it" + (f", but {', '.join(cores)} have" if cores else "")


def _needed(read: Sequence[tuple[str, HostCode]], words: frozenset[str], table: FeatureTable, reach: Reach) -> str:
    """`sve, bf16 (libtorch_cpu.so)`."""
    libraries = [name.rsplit("/", 1)[-1] for name, host in read if host.count(reach)]
    more = ", ..." if len(libraries) > _SHOWN else ""
    return f"{', '.join(table.strongest(words))} ({', '.join(libraries[:_SHOWN])}{more})"


def _within(read: Sequence[tuple[str, HostCode]], isa: Isa, as_stock: Collection[str]) -> Iterator[Check]:
    """The proof: no constructor and no plain function needs what the ISA does not have."""
    table = feature_table(ElfMachine[isa.arch.upper()])
    allowed = table.closure(isa.requires)
    clean = 0
    for name, host in read:
        groups = host.beyond(allowed, *_UNCONDITIONAL)
        if groups:
            yield _beyond(name, host, groups, isa, allowed, as_stock=name in as_stock)
        elif host.unknown:
            yield _not_known(name, host, isa)
        else:
            clean += 1
    if clean:
        functions = sum(host.functions for _, host in read)
        which = counted(clean, "library", "libraries")
        reason = f"{which}: no static initialiser and no plain function needs more than {isa.label}"
        yield Check.of(Level.STATIC, f"host code within {isa.name}", True, reason, libraries=clean, functions=functions)


def _not_known(name: str, host: HostCode, isa: Isa) -> Check:
    """A library with instructions of which nobody can say here what they need."""
    count = sum(group.functions for group in host.unknown)
    first = host.unknown[0].examples[0]
    where = readable(f"{first.function} ({first.because}) at {first.instruction}")
    reason = (
        f"{_count(count, 'holds', 'hold')} instructions that are not known here, so that it may need more than"
        f" {isa.label}; the first is {where}"
    )
    title = f"host code within {isa.name}: {name.rsplit('/', 1)[-1]}"
    return Check.not_applicable(Level.STATIC, title, reason, library=name, functions=_examples(host.unknown))


def _beyond(
    name: str, host: HostCode, groups: Sequence[UseGroup], isa: Isa, allowed: frozenset[str], *, as_stock: bool
) -> Check:
    """A library that goes beyond the ISA: a failure, unless it loads and stock's instructions are the same."""
    words = feature_table(host.machine).strongest({word for group in groups for word in group.needs} - allowed)
    counts = {reach: sum(g.functions for g in groups if g.reach is reach) for reach in _UNCONDITIONAL}
    where_used = []
    if counts[Reach.STARTUP]:
        where_used.append(f"{_count(counts[Reach.STARTUP], 'runs', 'run')} at load time")
    if counts[Reach.PLAIN]:
        where_used.append(f"{_count(counts[Reach.PLAIN], 'is', 'are')} behind no dispatch")
    first = groups[0].examples[0]
    where = readable(f"{first.function} ({first.because}) at {first.instruction}")
    reason = (
        f"needs {', '.join(words)}, which {isa.label} does not have: {' and '.join(where_used)}; the first is {where}"
    )
    loads = not counts[Reach.STARTUP]
    if loads:
        called = f"calling one of these (of {host.functions} functions) ends with an illegal instruction there"
        reason += f"; it loads on such a CPU, but {called}"
    else:
        reason += ": an illegal instruction on such a CPU"
    inherited = loads and as_stock
    if inherited:
        reason += (
            "; stock's instructions are the same, so the cut is not the cause: build with --via source for this CPU"
        )
    details = {
        "library": name,
        "beyond": words,
        "startup": counts[Reach.STARTUP],
        "plain": counts[Reach.PLAIN],
        "functions": _examples(groups),
    }
    outcome = CheckOutcome.NOT_APPLICABLE if inherited else CheckOutcome.FAIL
    return Check(Level.STATIC, f"host code within {isa.name}: {name.rsplit('/', 1)[-1]}", outcome, reason, details)


def _used(read: Sequence[tuple[str, HostCode]], isa: Isa) -> Check:
    """Code that uses the ISA exists: it was not compiled for something less."""
    table = feature_table(ElfMachine[isa.arch.upper()])
    uses: Counter[str] = Counter()
    for _, host in read:
        uses.update(host.uses)
    weaker = table.baseline
    telling = table.strongest(isa.requires - weaker)
    used = {word: uses[word] for word in telling if uses[word]}
    name = f"host code uses {isa.name}"
    if not used:
        reason = f"no function uses {', '.join(telling)}: this was compiled for something less than {isa.label}"
        return Check.of(Level.STATIC, name, False, reason, uses=dict(uses))
    counted = ", ".join(f"{count} functions use {word}" for word, count in used.items())
    unused = [word for word in telling if not uses[word]]
    rest = f"; none uses {', '.join(unused)}" if unused else ""
    return Check.of(Level.STATIC, name, True, f"{counted}{rest}", uses=dict(uses))


def _unattributed(read: Sequence[tuple[str, HostCode]], isa: Isa | None) -> Iterator[Check]:
    """What cannot be attributed, apart from the rest."""
    for name, host in read:
        table = feature_table(host.machine)
        allowed = table.closure(isa.requires) if isa and isa.arch == host.arch else table.baseline
        groups = host.beyond(allowed, Reach.UNATTRIBUTED)
        if groups:
            words = table.strongest({word for group in groups for word in group.needs} - allowed)
            count = sum(group.functions for group in groups)
            reason = (
                f"{_count(count, 'needs', 'need')} {', '.join(words)} and cannot be attributed:"
                f" {groups[0].examples[0].because}; not counted as always running"
            )
            yield Check.not_applicable(
                Level.STATIC,
                f"host code unattributed: {name.rsplit('/', 1)[-1]}",
                reason,
                library=name,
                functions=_examples(groups),
            )


def _examples(groups: Sequence[UseGroup]) -> list[dict[str, Any]]:
    rows = [
        {
            "function": use.function,
            "address": hex(use.address),
            "reach": group.reach.value,
            "because": use.because,
            "needs": list(group.needs),
            "instruction": use.instruction,
        }
        for group in groups
        for use in group.examples
    ]
    return rows[:_DETAILED]


def _count(number: int, one: str, more: str) -> str:
    return f"1 function {one}" if number == 1 else f"{number} functions {more}"
