# SPDX-License-Identifier: Apache-2.0
"""The stock ``StorageRewrite`` and ours, function by function: ``compare --storage-rewrite``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import tvm
from tvm.ir import IRModule
from tvm.ir.transform import Pass
from tvm.target import Target
from tvm.tirx import PrimFunc

from passes.addresses import has_tiles
from passes.driver import prim_funcs
from passes.ir import allocated_bits, first_line
from passes.storage_rewrite import StorageRewrite
from tvm_ext.commands.command_options import Report, progress_line, sizes_of
from tvm_ext.lowering import check_lowered, split
from tvm_ext.reading.programs import Program, load_program
from tvm_ext.text import Table, Tabular, counted, format_bytes, format_seconds


@dataclass(frozen=True)
class Allocations:
    """The allocations in one storage scope, as they stand in the IR."""

    count: int = 0
    """Allocations of constant size."""
    nbytes: int = 0
    """Their bytes, each rounded up to a whole byte. An allocation in a loop counts once."""
    symbolic: int = 0
    """Allocations of a size that only the running program knows."""


ByScope = Mapping[str, Allocations]


@dataclass(frozen=True)
class FunctionComparison:
    """The results of both passes for one function."""

    name: str
    before: ByScope
    stock: ByScope
    ours: ByScope
    """By storage scope, in alphabetical order: in the input, after the stock pass, after ours."""
    difference: str | None
    """Where the two results first differ, in words; None when they are structurally equal."""
    stock_seconds: float = field(compare=False)
    ours_seconds: float = field(compare=False)
    """Times of the second run of each pass."""

    @property
    def equal(self) -> bool:
        """Whether both passes give the same IR."""
        return self.difference is None


@dataclass(frozen=True)
class Comparison(Tabular):
    """Both passes on every PrimFunc of a module."""

    functions: tuple[FunctionComparison, ...]
    """At least one, in alphabetical order of the names."""

    @property
    def different(self) -> list[FunctionComparison]:
        """The functions of which the passes give other IR."""
        return [function for function in self.functions if not function.equal]

    @property
    def equal(self) -> bool:
        """Whether both passes give the same IR for every function."""
        return not self.different

    def table(self) -> Table:
        """Return a row for each function and scope, with the sums below."""
        rows = [("function", "scope", "allocs", "bytes", "equal")]
        for row in self.functions:
            shown = list(_shown(row.before, row.stock, row.ours)) or [("-", "0/0/0", "0/0/0 B")]
            rows.append((row.name, *shown[0], "yes" if row.equal else "NO"))
            rows += [("", *cells, "") for cells in shown[1:]]
        functions, different = counted(len(self.functions), "function"), len(self.different)
        equal = f"{functions}: {len(self.functions) - different} equal, {different} different"
        notes = [equal, self._times()]
        for scope, counts, sizes in _shown(*self.totals().values()):
            notes.append(f"{scope}: {counts} allocations, {sizes}")
        what = "allocations (n+m: m of a size known at run time only), bytes"
        return Table(f"{what}: before/after stock/after ours", rows, notes, left=(0, 1))

    def in_one_line(self) -> str:
        """Say whether our pass gives the IR of TVM's, and how long both take."""
        other, functions = len(self.different), counted(len(self.functions), "function")
        said = f"the same IR as TVM's in {'all of ' * (len(self.functions) > 1)}{functions}"
        if other:
            more = f" and {other - 1} more" if other > 1 else ""
            said = f"other IR than TVM's in {other} of {functions} ({self.different[0].name}{more})"
        return f"StorageRewrite: {said}; {self._times()}; --storage-rewrite shows each"

    def _times(self) -> str:
        stock = sum(function.stock_seconds for function in self.functions)
        ours = sum(function.ours_seconds for function in self.functions)
        return f"TVM's/ours take {format_seconds(stock, ours)}"

    def totals(self) -> dict[str, ByScope]:
        """Return the allocations of all functions: before, after stock and after ours."""
        return {
            stage: _sums((s, n) for row in self.functions for s, n in getattr(row, stage).items())
            for stage in ("before", "stock", "ours")
        }

    def plain(self) -> dict[str, Any]:
        """Return the data for JSON, without times: attributes by name, sums over functions."""
        rows = [{**asdict(row), "equal": row.equal} for row in self.functions]
        for row in rows:
            del row["stock_seconds"], row["ours_seconds"]
        totals: dict[str, Any] = {"functions": len(rows), "equal": len(rows) - len(self.different)}
        for stage, sums in self.totals().items():
            totals[stage] = {scope: asdict(group) for scope, group in sums.items()}
        return {"functions": rows, "totals": totals}


def _sums(groups: Iterable[tuple[str, Allocations]]) -> ByScope:
    """Add up allocations by scope, in alphabetical order."""
    sums: dict[str, Allocations] = {}
    for scope, more in groups:
        known = sums.get(scope, Allocations())
        nbytes, symbolic = known.nbytes + more.nbytes, known.symbolic + more.symbolic
        sums[scope] = Allocations(known.count + more.count, nbytes, symbolic)
    return dict(sorted(sums.items()))


def _shown(*uses: ByScope) -> Iterator[tuple[str, str, str]]:
    """Yield each scope with its numbers of allocations and its bytes, at several stages."""
    for scope in sorted({scope for use in uses for scope in use}):
        groups = [use.get(scope, Allocations()) for use in uses]
        counts = (f"{g.count}+{g.symbolic}" if g.symbolic else str(g.count) for g in groups)
        yield scope, "/".join(counts), format_bytes(*(group.nbytes for group in groups))


def compare(
    mod: IRModule | PrimFunc, *, target: str | Target | None = None, ours: Pass | None = None
) -> Comparison:
    """Run the stock ``StorageRewrite`` and ours on each PrimFunc, and return both side by side.

    Both run in the pass context in force. What is no module and no function is a TypeError.

    Parameters
    ----------
    mod : tvm.IRModule or tvm.tirx.PrimFunc
        It stays as it is. Without a target, functions have to stand where the pass does: flat, with
        blocks and vectorized loops lowered.
    target : str or tvm.target.Target, optional
        What the module is lowered for; one with Relax functions by default for ``llvm``.
    ours : tvm.transform.Pass, optional
        The pass to hold against the stock one; `tvm_ext.transform.StorageRewrite` by default.

    Raises
    ------
    ValueError
        When the module cannot be lowered, or when a pass fails: the message names the function and
        what it still needs, if that is known.
    """
    return _compared(split(mod, target=target), StorageRewrite() if ours is None else ours)


def compare_program(program: Program) -> Comparison:
    """Run both passes on a program, without functions of Trainium, which TVM never gives them."""
    functions = {name: f for name, f in program.functions.items() if not has_tiles(f)}
    try:
        return _compared(functions, StorageRewrite())
    except ValueError as error:
        raise ValueError(f"{program.name}: {error}") from error


def _compared(functions: Mapping[str, PrimFunc], ours: Pass) -> Comparison:
    rows: list[FunctionComparison] = []
    with progress_line("functions") as show:
        for name, func in functions.items():
            rows.append(_compare_function(name, func, ours))
            show(len(rows), len(functions))
    return Comparison(tuple(rows))


def _compare_function(name: str, func: PrimFunc, ours: Pass) -> FunctionComparison:
    mod, results, seconds = IRModule({name: func}), [], []
    for each in (tvm.tirx.transform.StorageRewrite(), ours):
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
        tvm.ir.assert_structural_equal(*results, map_free_vars=True)
    except ValueError as mismatch:
        difference = str(mismatch)
    before, by_stock, by_ours = map(allocations, (mod, *results))
    return FunctionComparison(name, before, by_stock, by_ours, difference, *seconds)


def allocations(mod: IRModule) -> ByScope:
    """Count the allocations of a module's PrimFuncs by storage scope, in alphabetical order."""
    return _sums(
        (scope, Allocations(symbolic=1) if nbits is None else Allocations(1, -(-nbits // 8)))
        for func in prim_funcs(mod).values()
        for scope, nbits in allocated_bits(func.body)
    )


def run(args: argparse.Namespace) -> Report:
    """Hold both passes against each other; the status is 1 if a function differs."""
    program = load_program(args.program, args.target, sizes_of(args))
    comparison = compare_program(program)
    lines = [program.title, ""] if program.assumed else []
    lines += comparison.table().text()
    for first in comparison.different[:1]:
        lines += ["", f"the first function that differs: {first.name}", first.difference or ""]
    return Report(comparison.plain(), lines, 0 if comparison.equal else 1)
