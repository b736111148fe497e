# SPDX-License-Identifier: Apache-2.0
"""TVM's ``StorageRewrite`` and ours, function by function: whether both give the same IR."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A function before `StorageRewrite`, and what both passes make of it."""

    name: str
    before: IRModule
    stock: IRModule  # By TVM's pass
    ours: IRModule
    difference: str | None  # Where the two first differ, in words; None if they are equal
    seconds: tuple[float, float]  # Time that TVM's pass takes, and ours


def rewrites(
    functions: Mapping[str, PrimFunc], rewritten: Callable[[str], Rewritten], *, each: bool = True
) -> Iterator[Finding]:
    """Yield a line that says whether both passes make the same IR of functions.

    With `each`, a table has a row for each function and scope, and the first difference is said.
    Functions of Trainium, which TVM never gives to the pass, are left out. Raises what `rewritten`
    does, which returns both results by the name of a function.
    """
    found = [rewritten(name) for name, func in functions.items() if not has_tiles(func)]
    if not found:
        return
    different = [one for one in found if one.difference is not None]
    if each:
        yield _table(found)
        for first in different[:1]:
            yield f"the first function that differs: {first.name}: {first.difference}"
    seconds = map(sum, zip(*(one.seconds for one in found), strict=True))
    times = f"TVM's/ours take {format_seconds(*seconds)}"
    of = counted(len(found), "function")
    if different:
        more = f" and {len(different) - 1} more" if different[1:] else ""
        names = f"{different[0].name}{more}"
        said = f"other IR than TVM's in {len(different)} of {of} ({names}); {times}"
        yield Fault(f"StorageRewrite: {said}")
    else:
        yield f"StorageRewrite: the same IR as TVM's in {'all of ' * bool(found[1:])}{of}; {times}"


def rewrite(name: str, func: PrimFunc, ours: Pass | None = None) -> Rewritten:
    """Run both passes on a function; `ours` takes the place of our pass.

    The pass context in force applies. Raises ValueError when a pass fails, with what the function
    still needs.
    """
    mod, results, seconds = IRModule({name: func}), [], []
    for each in (STOCK_REWRITE(), StorageRewrite() if ours is None else ours):
        begin = perf_counter()
        try:
            results.append(each(mod))
        except Exception as error:  # a pass may raise anything
            check_lowered(name, func)
            raise ValueError(
                f"function {name!r}: {each.info.name} fails: {first_line(error)}"
            ) from error
        seconds.append(perf_counter() - begin)
    difference = None
    try:
        assert_structural_equal(*results, map_free_vars=True)
    except ValueError as mismatch:
        difference = str(mismatch)
    return Rewritten(name, mod, results[0], results[1], difference, (seconds[0], seconds[1]))


@dataclass(frozen=True)
class Allocations:
    """The allocations in one storage scope, as they stand in the IR."""

    count: int = 0  # Those of constant size
    nbytes: int = 0  # Their bytes, rounded up to whole ones; an allocation in a loop counts once
    symbolic: int = 0  # Those of a size that only the running program knows


def allocations(mod: IRModule) -> dict[str, Allocations]:
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


def _table(found: Sequence[Rewritten]) -> Table:
    rows = [("function", "scope", "allocs", "bytes", "equal")]
    for one in found:
        shown = list(_shown(one.before, one.stock, one.ours)) or [("-", "0/0/0", "0/0/0 B")]
        rows.append((one.name, *shown[0], "yes" if one.difference is None else "NO"))
        rows += [("", *cells, "") for cells in shown[1:]]
    what = "allocations (n+m: m of a size known at run time only), bytes"
    return Table(f"{what}: before/after stock/after ours", rows, left=(0, 1))


def _shown(*stages: IRModule) -> Iterator[tuple[str, str, str]]:
    """Yield each scope with its numbers of allocations and its bytes, at several stages."""
    uses = [*map(allocations, stages)]
    for scope in sorted({scope for use in uses for scope in use}):
        groups = [use.get(scope, Allocations()) for use in uses]
        counts = (f"{g.count}+{g.symbolic}" if g.symbolic else str(g.count) for g in groups)
        yield scope, "/".join(counts), format_bytes(*(group.nbytes for group in groups))
