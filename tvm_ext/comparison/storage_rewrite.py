# SPDX-License-Identifier: Apache-2.0
"""The stock ``StorageRewrite`` and ours, side by side on the functions of a module."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

import tvm
from tvm.ir import IRModule
from tvm.ir.transform import Pass
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.driver import prim_funcs
from passes.ir import allocated_bits, first_line
from passes.storage_rewrite import StorageRewrite
from tvm_ext.lowering import check_lowered, left_to_lower, split
from tvm_ext.text import Table, Tabular, counted, format_bytes, format_seconds

_HEADER = ("function", "scope", "allocs", "bytes", "equal", "time")
_LEGEND = "allocations, bytes: before/after stock/after ours; time: stock/ours"


@dataclass(frozen=True)
class Allocations:
    """The allocations in one storage scope, as they stand in the IR."""

    count: int = 0
    """Allocations of constant size."""
    nbytes: int = 0
    """Their bytes, each allocation rounded up to a whole byte. An allocation in a loop or a thread
    counts once."""
    symbolic: int = 0
    """Allocations of a size that only the running program knows; they are not in the others."""

    def __add__(self, other: Allocations) -> Allocations:
        """Count two groups as one."""
        return Allocations(
            self.count + other.count, self.nbytes + other.nbytes, self.symbolic + other.symbolic
        )


ByScope = Mapping[str, Allocations]


@dataclass(frozen=True)
class FunctionComparison:
    """What both passes made of one function."""

    name: str
    """The function's name in its module."""
    before: ByScope
    stock: ByScope
    ours: ByScope
    """By storage scope, in alphabetical order: in the input, after the stock pass, after ours."""
    difference: str | None
    """The first place where the two results differ, in words; None when they are structurally
    equal."""
    stock_seconds: float
    ours_seconds: float
    """Median time of a run on a module with this function only."""

    @property
    def equal(self) -> bool:
        """Whether both passes give the same IR."""
        return self.difference is None

    @property
    def ratio(self) -> float:
        """Our time over the stock pass's."""
        return self.ours_seconds / self.stock_seconds


@dataclass(frozen=True)
class Totals:
    """What the functions of a comparison come to."""

    functions: int
    equal: int
    """How many functions there are, and for how many of them the results are equal."""
    before: ByScope
    stock: ByScope
    ours: ByScope
    """By storage scope, in alphabetical order."""
    stock_seconds: float
    ours_seconds: float
    """Sums of the functions' times."""
    ratio: float
    """Ratio of the sums."""
    median_ratio: float
    """Median of the functions' ratios."""


@dataclass(frozen=True)
class Comparison(Tabular):
    """Both passes on every PrimFunc of a module."""

    functions: tuple[FunctionComparison, ...]
    """At least one, in alphabetical order of the names."""

    @property
    def equal(self) -> bool:
        """Whether both passes give the same IR for every function."""
        return all(function.equal for function in self.functions)

    @property
    def totals(self) -> Totals:
        """Sums over the functions."""
        rows = self.functions
        stock_seconds = sum(row.stock_seconds for row in rows)
        ours_seconds = sum(row.ours_seconds for row in rows)
        return Totals(
            functions=len(rows),
            equal=sum(row.equal for row in rows),
            before=sum_of(row.before for row in rows),
            stock=sum_of(row.stock for row in rows),
            ours=sum_of(row.ours for row in rows),
            stock_seconds=stock_seconds,
            ours_seconds=ours_seconds,
            ratio=ours_seconds / stock_seconds,
            median_ratio=statistics.median(row.ratio for row in rows),
        )

    def table(self, lowering_seconds: float | None = None) -> Table:
        """Return a row for each function and scope, with the totals below.

        The seconds that TVM took to lower the program up to the passes are held against theirs.
        """
        rows = [_HEADER, *(cells for function in self.functions for cells in _rows(function))]
        return Table(_LEGEND, rows, _total_lines(self.totals, lowering_seconds), left=(0, 1))

    def to_json(self) -> str:
        """Write everything as JSON text: ``{"functions": [...], "totals": {...}}``.

        The keys are the names of the attributes. Bytes are exact, times are in seconds.
        """
        rows = [{**asdict(row), "equal": row.equal, "ratio": row.ratio} for row in self.functions]
        return json.dumps({"functions": rows, "totals": asdict(self.totals)}, indent=2)


def sum_of(parts: Iterable[ByScope]) -> dict[str, Allocations]:
    """Add up allocations by scope, in alphabetical order."""
    sums: dict[str, Allocations] = {}
    for part in parts:
        for scope, group in part.items():
            sums[scope] = sums.get(scope, Allocations()) + group
    return dict(sorted(sums.items()))


def _rows(row: FunctionComparison) -> list[tuple[str, ...]]:
    shown = list(_shown(row)) or [("-", "0/0/0", format_bytes(0, 0, 0), False)]
    times = format_seconds(row.stock_seconds, row.ours_seconds)
    rows: list[tuple[str, ...]] = [
        ("", scope, counts, sizes, "", "") for scope, counts, sizes, _ in shown
    ]
    rows[0] = (row.name, *rows[0][1:4], "yes" if row.equal else "NO", times)
    return rows


def _shown(row: FunctionComparison | Totals) -> Iterator[tuple[str, str, str, bool]]:
    """Yield scope, counts, sizes, and whether there are some of a size that is not constant.

    Counts are before, after stock and after ours; those that are not constant behind a plus sign.
    """
    for scope in sorted({*row.before, *row.stock, *row.ours}):
        groups = [use.get(scope, Allocations()) for use in (row.before, row.stock, row.ours)]
        counts = (f"{g.count}+{g.symbolic}" if g.symbolic else str(g.count) for g in groups)
        sizes = format_bytes(*(group.nbytes for group in groups))
        yield scope, "/".join(counts), sizes, any(group.symbolic for group in groups)


def _total_lines(totals: Totals, lowering_seconds: float | None) -> list[str]:
    different = totals.functions - totals.equal
    functions = counted(totals.functions, "function")
    lines = [f"{functions}: {totals.equal} equal, {different} different"]
    for scope, counts, sizes, is_symbolic in _shown(totals):
        lines.append(f"{scope}: {counts} allocations, {sizes}")
        if is_symbolic:
            lines.append("  n+m: n of constant size, and m whose size the running program knows")
    times = f"time: {format_seconds(totals.stock_seconds, totals.ours_seconds)}"
    if lowering_seconds:
        part, whole = totals.ours_seconds / lowering_seconds, format_seconds(lowering_seconds)
        times += f"; ours is {part:.1%} of the {whole} that the rest of lowering took"
    return [*lines, times]


def compare(
    mod: IRModule | PrimFunc,
    *,
    target: str | Target | None = None,
    ours: Pass | None = None,
    repeats: int = 5,
) -> Comparison:
    """Run the stock ``StorageRewrite`` and ours on each PrimFunc of a module.

    Both run in the pass context in force.

    Parameters
    ----------
    mod : tvm.IRModule or tvm.tirx.PrimFunc
        As `split` takes it; it stays as it is.
    target : str or tvm.target.Target, optional
        As in `split`.
    ours : tvm.transform.Pass, optional
        The pass to hold against the stock one; `tvm_ext.transform.StorageRewrite` by default.
    repeats : int
        How often each pass is timed, by turns; the median counts.

    Returns
    -------
    Comparison
        A row for each function.

    Raises
    ------
    ValueError
        As `split` and `compare_function` do.
    """
    functions = split(mod, target=target).items()
    rows = (compare_function(*function, ours=ours, repeats=repeats) for function in functions)
    return Comparison(tuple(rows))


def compare_function(
    name: str, func: PrimFunc, *, ours: Pass | None = None, repeats: int = 5
) -> FunctionComparison:
    """Run both passes on a function, as `split` gives it, and compare them.

    Raises ValueError when `repeats` is less than 1, or a pass fails; the message names the function
    and what it still needs, if that is known.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, and is {repeats}")
    mod = IRModule({name: func})
    passes = (tvm.tirx.transform.StorageRewrite(), StorageRewrite() if ours is None else ours)
    after_stock, after_ours = (_run(pass_, mod, name) for pass_ in passes)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for pass_, times in zip(passes, seconds, strict=True):
            begin = time.perf_counter()
            pass_(mod)
            times.append(time.perf_counter() - begin)
    return FunctionComparison(
        name=name,
        before=allocations(mod),
        stock=allocations(after_stock),
        ours=allocations(after_ours),
        difference=_difference(after_stock, after_ours),
        stock_seconds=statistics.median(seconds[0]),
        ours_seconds=statistics.median(seconds[1]),
    )


def allocations(mod: IRModule) -> dict[str, Allocations]:
    """Count the allocations of a module's PrimFuncs by storage scope, in alphabetical order."""
    return sum_of(
        {scope: Allocations(symbolic=1) if nbits is None else Allocations(1, -(-nbits // 8))}
        for func in prim_funcs(mod).values()
        for scope, nbits in allocated_bits(func.body)
    )


def _difference(stock: IRModule, ours: IRModule) -> str | None:
    try:
        tvm.ir.assert_structural_equal(stock, ours, map_free_vars=True)
    except ValueError as mismatch:
        return str(mismatch)
    return None


def _run(pass_: Pass, mod: IRModule, name: str) -> IRModule:
    try:
        return pass_(mod)
    except Exception as error:  # a pass may raise anything
        check_lowered(name, left_to_lower(mod[name]))
        raise ValueError(
            f"function {name!r}: {pass_.info.name} fails: {first_line(error)}"
        ) from error
