# SPDX-License-Identifier: Apache-2.0
"""Plans of a program's memories as data and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from passes.planning import Problem, html_table
from target_hw.memory import round_up
from tvm_ext.planned.placements import PlannedMemory, PlannedProblem, planned_memory
from tvm_ext.text import Table, counted, format_bytes, format_seconds

SEARCH_NODES = 100_000
"""Placements that a planner may try by default: an answer within seconds."""

_HEADER = ("", "bytes", "of stock", "of bound", "fits", "proven", "penalty", "time")
_UNSOUND = "it lets buffers share that are live together (docs/stock-differences.md)"


@dataclass(frozen=True)
class ScopeResult:
    """A memory of one function, planned in every way; all bytes include those reserved below."""

    function: str
    scope: str  # A storage scope; of a network ``tensors, fused`` or ``tensors, not fused``
    buffers: int  # Number of buffers
    capacity: int | None  # Bytes of the memory
    no_reuse: int  # Bytes of all slots of all buffers, each rounded up to its alignment
    # Bytes after the stock pass. None where a buffer has several slots, which that pass does not
    # know, or where it takes less than any plan of these buffers can: `note` says why.
    stock: int | None
    plans: tuple[PlannedMemory, ...]  # In the order in which the planners were asked
    lower_bound: int  # Bytes that every plan needs
    reserved: int = 0  # Bytes of the capacity that are not for buffers
    note: str = ""


@dataclass(frozen=True)
class Makespan:
    """What a kernel for a chip costs under the plans of one planner."""

    function: str
    planner: str
    cycles: int  # From the first statement's start to the last one's end, simulated


@dataclass(frozen=True)
class PlannerComparison:
    """All planners on one program."""

    program: str
    """What it is called."""
    scopes: tuple[ScopeResult, ...]
    """In the order of the functions' names; the tensors of a network come first."""
    makespans: tuple[Makespan, ...] = ()
    """Of the functions whose target describes its pipelines, for planners whose plans fit."""
    notes: tuple[str, ...] = ()
    """What was assumed, and what the numbers leave out: a line each."""

    @property
    def fits(self) -> bool:
        """Whether each memory has a plan that fits."""
        return all(any(plan.fits for plan in scope.plans) for scope in self.scopes if scope.plans)

    def tables(self) -> list[Table]:
        """Return a table for each memory, over all functions, and one of each kernel's cycles."""
        scopes = dict.fromkeys(result.scope for result in self.scopes)
        found = [scope_table([r for r in self.scopes if r.scope == scope]) for scope in scopes]
        for function in dict.fromkeys(makespan.function for makespan in self.makespans):
            cycles = {m.planner: m.cycles for m in self.makespans if m.function == function}
            least = min(cycles.values())
            rows = [(p, f"{n:,}", f"{n / least:.3f}") for p, n in cycles.items()]
            head = ("", "cycles", "of least")
            found.append(Table(f"{function}: makespan, simulated", [head, *rows]))
        return found

    def __str__(self) -> str:
        """Return the tables, and the notes below them."""
        parts = ["\n".join(table.text()) for table in self.tables()]
        parts = parts or [f"{self.program}: there is nothing to plan"]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        """Return the same tables for a notebook."""
        notes = html_table(self.program, ("notes",), ((note,) for note in self.notes))
        parts = [table.html() for table in self.tables()]
        return "".join([*parts, notes] if self.notes or not parts else parts)


def scope_table(results: Sequence[ScopeResult], notes: Sequence[str] = ()) -> Table:
    """Sum up one memory over functions."""
    first, several = results[0], len(results) > 1
    where = f"{len(results)} functions" if several else first.function
    title = f"{first.scope}: {counted(sum(r.buffers for r in results), 'buffer')} of {where}"
    if first.capacity is not None:
        title += f", capacity {format_bytes(first.capacity)}"
    if first.reserved:
        title += f", {format_bytes(first.reserved)} reserved"
    bound = sum(result.lower_bound for result in results)
    known = [result.stock for result in results if result.stock is not None]
    stock = sum(known) if len(known) == len(results) else None

    def row(name: str, nbytes: int, *more: str) -> tuple[str, ...]:
        of_stock = f"{nbytes / stock:.1%}" if stock else ""
        of_bound = f"{nbytes / bound:.3f}" if bound else ""
        return name, f"{nbytes:,}", of_stock, of_bound, *(more or ("",) * 4)

    rows = [_HEADER, row("no reuse", sum(result.no_reuse for result in results))]
    rows += [] if stock is None else [row("stock", stock)]
    for planner in dict.fromkeys(plan.planner for result in results for plan in result.plans):
        plans = [plan for result in results for plan in result.plans if plan.planner == planner]
        if len(plans) == len(results):
            penalty = sum(plan.penalty or 0 for plan in plans)
            fits = _for_all(["yes" if plan.fits else "" for plan in plans])
            more = (
                "" if first.capacity is None else fits,
                _for_all([plan.proven for plan in plans]),
                f"{penalty:,}" if penalty else "",
                format_seconds(sum(plan.seconds for plan in plans)),
            )
            rows.append(row(planner, sum(plan.nbytes for plan in plans), *more))
    return Table(title, [*rows, row("lower bound", bound)], notes)


def _for_all(answers: Sequence[str]) -> str:
    """Return the common answer, ``no`` for an empty text; of several, how many are not empty."""
    if len(set(answers)) == 1:
        return answers[0] or "no"
    return f"{sum(map(bool, answers))}/{len(answers)}"


def scope_result(
    function: str,
    scope: str,
    memories: Sequence[Sequence[PlannedProblem]],
    stock: int | None = None,
    why_less: str = _UNSOUND,
) -> ScopeResult:
    """Add up the plans of one memory of a function, for each point at which it is attached.

    `stock` is what the stock pass allocates at all points, and `why_less` the reason for which that
    can be less than any plan takes.
    """
    firsts = [placements[0] for placements in memories]
    outer = firsts[0].problem
    buffers = [buffer for one in firsts for buffer in one.problem.buffers]
    no_reuse = 0
    for one in firsts:
        problem = one.problem
        sizes = (round_up(b.size, problem.alignment_of(b)) * b.slots for b in problem.buffers)
        no_reuse += end_of(problem, sum(sizes)) - one.base
    bound, note = sum(one.bound - one.base for one in firsts), ""
    if stock is not None:
        has_slots = any(buffer.slots > 1 for buffer in buffers)
        stock = None if has_slots else end_of(outer, stock)
    if stock is not None and stock < bound:
        note = (
            f"{function}, {scope}: the stock pass takes {stock:,} bytes, less than any plan of "
            f"the same buffers can: {why_less}"
        )
    plans = tuple(planned_memory(plans) for plans in zip(*memories, strict=True))
    reserved = sum(end - begin for begin, end in outer.memory.reserved)
    stock = None if note else stock
    return ScopeResult(
        function, scope, len(buffers), outer.capacity, no_reuse, stock, plans, bound, reserved, note
    )


def end_of(problem: Problem, nbytes: int) -> int:
    """Return where so many bytes end in a memory, the ranges that it reserves below included."""
    for begin, end in problem.memory.reserved:
        nbytes += end - begin if begin < nbytes else 0
    return nbytes
