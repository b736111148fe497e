# SPDX-License-Identifier: Apache-2.0
"""TVM's ``StorageRewrite`` and ours, function by function: whether both give the same IR."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from passes.addresses import has_tiles
from passes.ir import (
    STOCK_REWRITE,
    IRModule,
    Pass,
    PrimFunc,
    allocated_bits,
    assert_structural_equal,
    first_line,
    prim_funcs,
)
from passes.storage_rewrite import StorageRewrite
from tvm_ext.lowering import check_lowered
from tvm_ext.report.memory_view import Fault
from tvm_ext.report.report import Finding
from tvm_ext.text import Table, counted, format_bytes, format_seconds


@dataclass(frozen=True)
class Allocations:
    """The allocations in one storage scope, as they stand in the IR."""

    count: int = 0  # Those of constant size
    nbytes: int = 0  # Their bytes, rounded up to whole ones; an allocation in a loop counts once
    symbolic: int = 0  # Those of a size that only the running program knows


ByScope = Mapping[str, Allocations]


@dataclass(frozen=True)
class FunctionComparison:
    """The results of both passes for one function."""

    name: str
    # By storage scope, in alphabetical order: in the input, after the stock pass, after ours
    before: ByScope
    stock: ByScope
    ours: ByScope
    difference: str | None  # Where the two results first differ, in words; None if they are equal
    # Times of the second run of each pass
    stock_seconds: float = field(compare=False)
    ours_seconds: float = field(compare=False)

    @property
    def equal(self) -> bool:
        """Whether both passes give the same IR."""
        return self.difference is None


def rewrites(functions: Mapping[str, PrimFunc], *, each: bool = True) -> Iterator[Finding]:
    """Run both passes on functions, and yield a line that says whether their results are equal.

    With `each`, a table has a row for each function and scope, and the first difference is said.
    Functions of Trainium, which TVM never gives to the pass, are left out. The pass context in
    force applies. Raises ValueError when a pass fails, with what the function still needs.
    """
    found = compared(functions)
    if not found:
        return
    different = [one for one in found if not one.equal]
    if each:
        yield _table(found)
        for first in different[:1]:
            yield f"the first function that differs: {first.name}: {first.difference}"
    seconds = (sum(one.stock_seconds for one in found), sum(one.ours_seconds for one in found))
    times = f"TVM's/ours take {format_seconds(*seconds)}"
    of = counted(len(found), "function")
    if different:
        more = f" and {len(different) - 1} more" if different[1:] else ""
        names = f"{different[0].name}{more}"
        said = f"other IR than TVM's in {len(different)} of {of} ({names}); {times}"
        yield Fault(f"StorageRewrite: {said}")
    else:
        yield f"StorageRewrite: the same IR as TVM's in {'all of ' * bool(found[1:])}{of}; {times}"


def compared(
    functions: Mapping[str, PrimFunc], ours: Pass | None = None
) -> list[FunctionComparison]:
    """Return the results of both passes for each function; `ours` takes the place of our pass."""
    ours = StorageRewrite() if ours is None else ours
    return [_compare(n, func, ours) for n, func in functions.items() if not has_tiles(func)]


def _compare(name: str, func: PrimFunc, ours: Pass) -> FunctionComparison:
    mod, results, seconds = IRModule({name: func}), [], []
    for each in (STOCK_REWRITE(), ours):
        try:
            results.append(each(mod))
        except Exception as error:  # a pass may raise anything
            check_lowered(name, func)
            raise ValueError(
                f"function {name!r}: {each.info.name} fails: {first_line(error)}"
            ) from error
        begin = perf_counter()
        each(mod)
        seconds.append(perf_counter() - begin)
    difference = None
    try:
        assert_structural_equal(*results, map_free_vars=True)
    except ValueError as mismatch:
        difference = str(mismatch)
    before, by_stock, by_ours = map(allocations, (mod, *results))
    return FunctionComparison(name, before, by_stock, by_ours, difference, *seconds)


def allocations(mod: IRModule) -> ByScope:
    """Count the allocations of a module's PrimFuncs by storage scope, in alphabetical order."""
    found: defaultdict[str, Allocations] = defaultdict(Allocations)
    for func in prim_funcs(mod).values():
        for scope, nbits in allocated_bits(func.body):
            known = found[scope]
            if nbits is None:
                found[scope] = replace(known, symbolic=known.symbolic + 1)
            else:
                nbytes = known.nbytes - (-nbits // 8)
                found[scope] = replace(known, count=known.count + 1, nbytes=nbytes)
    return dict(sorted(found.items()))


def _table(found: Sequence[FunctionComparison]) -> Table:
    rows = [("function", "scope", "allocs", "bytes", "equal")]
    for row in found:
        shown = list(_shown(row.before, row.stock, row.ours)) or [("-", "0/0/0", "0/0/0 B")]
        rows.append((row.name, *shown[0], "yes" if row.equal else "NO"))
        rows += [("", *cells, "") for cells in shown[1:]]
    what = "allocations (n+m: m of a size known at run time only), bytes"
    return Table(f"{what}: before/after stock/after ours", rows, left=(0, 1))


def _shown(*uses: ByScope) -> Iterator[tuple[str, str, str]]:
    """Yield each scope with its numbers of allocations and its bytes, at several stages."""
    for scope in sorted({scope for use in uses for scope in use}):
        groups = [use.get(scope, Allocations()) for use in uses]
        counts = (f"{g.count}+{g.symbolic}" if g.symbolic else str(g.count) for g in groups)
        yield scope, "/".join(counts), format_bytes(*(group.nbytes for group in groups))
