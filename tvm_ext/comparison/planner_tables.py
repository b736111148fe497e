# SPDX-License-Identifier: Apache-2.0
"""All planners side by side, as tables for a terminal or in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from passes.planning.html_table import html_table
from tvm_ext.byte_sizes import format_bytes
from tvm_ext.columns import in_columns
from tvm_ext.comparison.planners import Makespan, PlannerComparison, ScopeResult
from tvm_ext.planned_memory import PlannedMemory

HEADER = ("", "bytes", "of stock", "of bound", "fits", "proven", "penalty", "time")


@dataclass(frozen=True)
class Table:
    """A title, and rows of cells; the first row names the columns."""

    title: str
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> list[str]:
        """Return lines: columns two spaces apart, the first to the left, the others to the right.

        A column in which no row has anything is left out.
        """
        return [self.title, "", *in_columns(_without_empty_columns(self.rows))]

    def markdown(self) -> list[str]:
        """Return lines of Markdown."""
        header, *rows = _without_empty_columns(self.rows)
        rule = ["---", *["---:"] * (len(header) - 1)]
        cells = [[cell.replace("|", "\\|") for cell in row] for row in (header, rule, *rows)]
        return [f"**{self.title}**", "", *(f"| {' | '.join(row)} |" for row in cells)]

    def html(self) -> str:
        """Return an element of HTML."""
        header, *rows = _without_empty_columns(self.rows)
        return html_table(self.title, header, rows)


def html_of(comparison: PlannerComparison) -> str:
    """Write a comparison of planners as tables of HTML.

    Parameters
    ----------
    comparison : PlannerComparison
        The data.
    """
    notes = html_table(comparison.program, ("notes",), ((note,) for note in comparison.notes))
    parts = [table.html() for table in tables(comparison)]
    return "".join([*parts, notes] if comparison.notes or not parts else parts)


def tables(comparison: PlannerComparison) -> list[Table]:
    """Return a table for each memory, over all functions, and one of what kernels cost in time.

    Parameters
    ----------
    comparison : PlannerComparison
        The data.
    """
    scopes = dict.fromkeys(result.scope for result in comparison.scopes)
    found = [_scope_table([r for r in comparison.scopes if r.scope == scope]) for scope in scopes]
    functions = dict.fromkeys(makespan.function for makespan in comparison.makespans)
    return [*found, *(_makespan_table(f, comparison.makespans) for f in functions)]


def render_planners(comparison: PlannerComparison, *, markdown: bool = False) -> str:
    """Write a comparison of planners as tables.

    Parameters
    ----------
    comparison : PlannerComparison
        What `tvm_ext.compare_planners` returned.
    markdown : bool
        Whether as Markdown, and not as plain text.

    Returns
    -------
    str
        A table for each memory, over all functions, and one of what kernels cost in time; and what
        they leave out.
    """
    found = tables(comparison)
    parts = ["\n".join(t.markdown() if markdown else t.text()) for t in found]
    if not parts:
        parts.append(f"{comparison.program}: there is nothing to plan")
    if comparison.notes:
        parts.append("\n".join(f"- {note}" for note in comparison.notes))
    return "\n\n".join(parts)


def _scope_table(results: Sequence[ScopeResult]) -> Table:
    """Sum up one memory over functions."""
    buffers = sum(result.buffers for result in results)
    where = f"of {results[0].function}" if len(results) == 1 else f"of {len(results)} functions"
    title = f"{results[0].scope}: {buffers} buffer{'s' * (buffers != 1)} {where}"
    if results[0].capacity is not None:
        title += f", capacity {format_bytes(results[0].capacity)}"
    if results[0].reserved:
        title += f", {format_bytes(results[0].reserved)} reserved"
    bound = sum(result.lower_bound for result in results)
    stock = total_stock(results)
    rows: list[tuple[str, ...]] = [HEADER]
    no_reuse = sum(result.no_reuse for result in results)
    rows.append(("no reuse", f"{no_reuse:,}", *_shares(no_reuse, stock, bound), "", "", "", ""))
    if stock is not None:
        rows.append(("stock", f"{stock:,}", *_shares(stock, stock, bound), "", "", "", ""))
    for planner in dict.fromkeys(plan.planner for result in results for plan in result.plans):
        plans = [plan for result in results for plan in result.plans if plan.planner == planner]
        if len(plans) == len(results):
            capacity = results[0].capacity
            rows.append(_planner_row(planner, plans, stock, bound, capacity))
    rows.append(("lower bound", f"{bound:,}", *_shares(bound, stock, bound), "", "", "", ""))
    return Table(title, tuple(rows))


def total_stock(results: Sequence[ScopeResult]) -> int | None:
    """Return the bytes of the stock pass, None where it does not do the same for all of them.

    Parameters
    ----------
    results : sequence of ScopeResult
        Of the same memory.
    """
    found = [result.stock for result in results if result.stock is not None]
    return sum(found) if len(found) == len(results) else None


def _planner_row(
    planner: str,
    plans: Sequence[PlannedMemory],
    stock: int | None,
    bound: int,
    capacity: int | None,
) -> tuple[str, ...]:
    nbytes = sum(plan.nbytes for plan in plans)
    penalties = [plan.penalty for plan in plans]
    known = [penalty for penalty in penalties if penalty is not None]
    return (
        planner,
        f"{nbytes:,}",
        *_shares(nbytes, stock, bound),
        "" if capacity is None else _count([plan.fits for plan in plans]),
        _proofs([plan.proven for plan in plans]),
        f"{sum(known):,}" if any(known) else "",
        format_seconds(sum(plan.seconds for plan in plans)),
    )


def _count(answers: Sequence[bool]) -> str:
    """Say how many are true: ``yes``, ``no``, or ``3/7``."""
    if len(set(answers)) == 1:
        return "yes" if answers[0] else "no"
    return f"{sum(answers)}/{len(answers)}"


def _proofs(proofs: Sequence[str]) -> str:
    """Say what is proven of all, or of how many something is."""
    if len(set(proofs)) == 1:
        return proofs[0] or "no"
    return f"{sum(map(bool, proofs))}/{len(proofs)}"


def _shares(nbytes: int, stock: int | None, bound: int) -> tuple[str, str]:
    of_stock = f"{nbytes / stock:.1%}" if stock else ""
    return of_stock, f"{nbytes / bound:.3f}" if bound else ""


def format_seconds(seconds: float) -> str:
    """Return a time in the unit that suits it.

    Parameters
    ----------
    seconds : float
        The time.
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.0f} us"


def _makespan_table(function: str, makespans: Sequence[Makespan]) -> Table:
    chosen = [makespan for makespan in makespans if makespan.function == function]
    least = min(makespan.cycles for makespan in chosen)
    rows = [("", "cycles", "of least")]
    rows += [(m.planner, f"{m.cycles:,}", f"{m.cycles / least:.3f}") for m in chosen]
    return Table(f"{function}: makespan, simulated", tuple(rows))


def summary(comparisons: Sequence[PlannerComparison]) -> Table:
    """Return a row for each program, with each planner's share of the stock pass, or of no reuse.

    Parameters
    ----------
    comparisons : sequence of PlannerComparison
        Of several programs. The last row is the geometric mean over those that a planner planned.
    """
    planners = dict.fromkeys(
        plan.planner for c in comparisons for result in c.scopes for plan in result.plans
    )
    rows = [("", "bytes", *planners)]
    shares: dict[str, list[float]] = {planner: [] for planner in planners}
    for comparison in comparisons:
        base = _base(comparison.scopes)
        cells = []
        for planner in planners:
            nbytes = _bytes_of(planner, comparison.scopes)
            if nbytes is None or not base or not nbytes:
                cells.append("")
            else:
                shares[planner].append(nbytes / base)
                cells.append(f"{nbytes / base:.1%}")
        rows.append((comparison.program, f"{base:,}", *cells))
    means = (math.exp(math.fsum(map(math.log, s)) / len(s)) if s else None for s in shares.values())
    rows.append(("geometric mean", "", *("" if m is None else f"{m:.1%}" for m in means)))
    return Table("all programs: bytes of the stock pass, and each planner's share", tuple(rows))


def _base(results: Sequence[ScopeResult]) -> int:
    return sum(r.no_reuse if r.stock is None else r.stock for r in results)


def _bytes_of(planner: str, results: Sequence[ScopeResult]) -> int | None:
    found = [plan.nbytes for r in results for plan in r.plans if plan.planner == planner]
    return sum(found) if found and len(found) == len(results) else None


def _without_empty_columns(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    kept = [i for i in range(len(rows[0])) if i == 0 or any(row[i] for row in rows[1:])]
    return [tuple(row[i] for i in kept) for row in rows]
