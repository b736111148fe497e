# SPDX-License-Identifier: Apache-2.0
"""Memories as tables: a row a planner, over all functions that have such a memory.

Functions run one after another, so bytes are those of the function that takes most, by each
planner; times and penalties are added up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from passes.planning import Problem
from target_hw.memory import round_up
from tvm_ext.named_planners import STOCK
from tvm_ext.report.memory_view import LeftAlone, MemoryView, PlannedProblem, PlannedRun
from tvm_ext.text import Table, counted, format_bytes, format_seconds

_FEW = 4
"""Up to so many buffers that are not planned are named."""

_HEADER = ("", "bytes", "of stock", "of bound", "fits", "proven", "penalty", "time")


def memory_tables(memories: Sequence[MemoryView]) -> list[Table]:
    """Return a table for each kind of memory, over the functions that have it."""
    by_kind: defaultdict[str, list[MemoryView]] = defaultdict(list)
    for view in memories:
        by_kind[view.holds or view.scope].append(view)
    return [_table(kind, views) for kind, views in by_kind.items()]


def stock_bytes(views: Sequence[MemoryView]) -> int | None:
    """Return the bytes of TVM's own plans, of the memory that takes most.

    None where a memory has no such plan, or one that takes less than any right plan can.
    """
    stock = [plan for view in views for plan in view.plans if plan.planner == STOCK]
    is_known = len(stock) == len(views) and all(one.plan.peak >= one.bound for one in stock)
    return max(one.plan.peak for one in stock) if is_known else None


def bytes_without_reuse(views: Sequence[MemoryView]) -> int:
    """Return the bytes of all slots of all buffers, each rounded up, of the largest function."""
    by_owner: defaultdict[str, list[Problem]] = defaultdict(list)
    for view in views:
        by_owner[view.owner].append(view.problem)
    return max(
        end_of(
            problems[0],
            sum(
                round_up(buffer.size, problem.alignment_of(buffer)) * buffer.slots
                for problem in problems
                for buffer in problem.buffers
            ),
        )
        for problems in by_owner.values()
    )


def end_of(problem: Problem, nbytes: int) -> int:
    """Return where so many bytes end in a memory, the ranges that it reserves below included."""
    for begin, end in problem.memory.reserved:
        nbytes += end - begin if begin < nbytes else 0
    return nbytes


def _table(kind: str, views: Sequence[MemoryView]) -> Table:
    problem, owners = views[0].problem, dict.fromkeys(view.owner for view in views)
    buffers = counted(sum(len(view.problem.buffers) for view in views), "buffer")
    where = f"{len(owners)} functions, bytes of the largest" if len(owners) > 1 else views[0].owner
    title = f"{kind}: {buffers} of {where}"
    if problem.capacity is not None:
        title += f", capacity {format_bytes(problem.capacity)}"
    if reserved := sum(end - begin for begin, end in problem.memory.reserved):
        title += f", {format_bytes(reserved)} reserved"
    stock, bound = stock_bytes(views), max(view.bound for view in views)

    def row(name: str, nbytes: int, *more: str) -> tuple[str, ...]:
        of_stock = f"{nbytes / stock:.1%}" if stock else ""
        of_bound = f"{nbytes / bound:.3f}" if bound else ""
        return name, f"{nbytes:,}", of_stock, of_bound, *(more or ("",) * 4)

    rows = [_HEADER, row("no reuse", bytes_without_reuse(views))]
    rows += [] if stock is None else [row(STOCK, stock)]
    by_planner: defaultdict[str, list[PlannedProblem]] = defaultdict(list)
    for one in (one for view in views for one in view.plans if one.planner != STOCK):
        by_planner[one.planner].append(one)
    for planner, plans in by_planner.items():
        if len(plans) == len(views):
            nbytes = max(one.plan.peak for one in plans)
            penalty = sum(one.plan.penalty for one in plans)
            seconds = sum(one.seconds for one in plans)
            fits = sum(one.plan.fits for one in plans)
            more = (
                "" if problem.capacity is None else _of_all(fits, len(plans)),
                _proven(plans, nbytes == bound),
                f"{penalty:,}" if penalty else "",
                format_seconds(seconds) if seconds else "",
            )
            rows.append(row(planner, nbytes, *more))
    return Table(title, [*rows, row("lower bound", bound)], list(_wrong_stock(views)))


def _wrong_stock(views: Sequence[MemoryView]) -> Iterator[str]:
    """Say why TVM's own plans are left out of a table, where they are."""
    wrong = [(v, p) for v in views for p in v.plans if p.planner == STOCK and p.plan.peak < p.bound]
    for view, one in wrong[:1]:
        where = (
            f"of {view.owner}" if not wrong[1:] else f"in {len(wrong)} memories, as of {view.owner}"
        )
        _, _, rule = one.remark.partition("; ")
        yield (
            f"{STOCK} is left out: TVM's plan takes less than any right one {where}: "
            f"{one.plan.peak:,} bytes, where {one.bound:,} are needed{f' ({rule})' if rule else ''}"
        )


def _of_all(number: int, of: int) -> str:
    return {of: "yes", 0: "no"}.get(number, f"{number}/{of}")


def _proven(plans: Sequence[PlannedProblem], is_lowest: bool) -> str:
    """Say what is proven of all plans of one planner together."""
    said = {one.proven for one in plans}
    if len(said) == 1:
        return said.pop() or "no"
    return "lowest peak" if is_lowest else _of_all(sum(bool(p.proven) for p in plans), len(plans))


def run_tables(runs: Sequence[PlannedRun], memories: Sequence[MemoryView]) -> Iterator[Table]:
    """Yield a table of each simulated function's cycles, by the planners whose plans fit."""
    above = {(v.owner, one.planner) for v in memories for one in v.plans if not one.plan.fits}
    by_function: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for run in runs:
        if (run.function, run.planner) not in above:
            by_function[run.function][run.planner] = run.simulation.makespan
    for function, cycles in by_function.items():
        least = min(cycles.values())
        rows = [(p, f"{n:,}", f"{n / least:.3f}") for p, n in cycles.items()]
        yield Table(f"{function}: makespan, simulated", [("", "cycles", "of least"), *rows])


def left_lines(left: Sequence[LeftAlone]) -> Iterator[str]:
    """Yield a line for each scope and reason for which buffers are not planned."""
    groups: defaultdict[tuple[str, str, str], list[LeftAlone]] = defaultdict(list)
    for one in left:
        groups[one.what, one.scope, one.reason].append(one)
    for (what, scope, reason), buffers in groups.items():
        owners = dict.fromkeys(one.owner for one in buffers)
        where = next(iter(owners)) if len(owners) == 1 else f"{len(owners)} functions"
        names = ", ".join(repr(one.name) for one in buffers)
        said = f" ({names})" if len(buffers) <= _FEW and len(owners) == 1 else ""
        place = f"in {scope} of {where}" if scope else f"of {where}"
        why = f": {reason}" if len(buffers) == 1 else f", each because {reason}"
        yield f"not planned, {counted(len(buffers), what)} {place}{said}{why}"
