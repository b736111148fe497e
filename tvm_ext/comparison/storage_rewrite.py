# SPDX-License-Identifier: Apache-2.0
"""The stock ``StorageRewrite`` and ours, side by side on the functions of a module."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import IRModule
from tvm.ir.transform import Pass
from tvm.target import Target
from tvm.tirx import AllocBuffer, PrimFunc

from passes.ir.buffers import constant_shape, element_type
from passes.ir.errors import first_line
from passes.storage_rewrite.transform import StorageRewrite
from tvm_ext.comparison.pass_results import (
    Allocations,
    ByScope,
    Comparison,
    FunctionComparison,
    sum_of,
)
from tvm_ext.comparison.single_functions import left_to_lower, not_lowered, prim_funcs, split


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
    modules = split(mod, target=target)
    return Comparison(tuple(compare_function(m, ours=ours, repeats=repeats) for m in modules))


def compare_function(
    mod: IRModule, *, ours: Pass | None = None, repeats: int = 5
) -> FunctionComparison:
    """Run both passes on a module with one function, as `split` gives it, and compare them.

    Raises ValueError when `repeats` is less than 1, or a pass fails; the message names the function
    and what it still needs, if that is known.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, and is {repeats}")
    (var,) = mod.functions
    passes = (tvm.tirx.transform.StorageRewrite(), StorageRewrite() if ours is None else ours)
    after_stock, after_ours = (_run(pass_, mod, var.name_hint) for pass_ in passes)
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for pass_, times in zip(passes, seconds, strict=True):
            begin = time.perf_counter()
            pass_(mod)
            times.append(time.perf_counter() - begin)
    return FunctionComparison(
        name=var.name_hint,
        before=allocations(mod),
        stock=allocations(after_stock),
        ours=allocations(after_ours),
        difference=_difference(after_stock, after_ours),
        stock_seconds=statistics.median(seconds[0]),
        ours_seconds=statistics.median(seconds[1]),
    )


def allocations(mod: IRModule) -> dict[str, Allocations]:
    """Count the allocations of a module's PrimFuncs by storage scope, in alphabetical order."""
    found: list[ByScope] = []

    def visit(stmt: AllocBuffer) -> None:
        ty = stmt.buffer.ty
        found.append({str(ty.storage_scope) or "global": _one_allocation(ty)})

    for func in prim_funcs(mod).values():
        tvm_ffi.structural_walk(func.body, ((AllocBuffer, visit),))
    return sum_of(found)


def _one_allocation(ty: Any) -> Allocations:
    extents, element = constant_shape(ty.shape), element_type(ty.dtype)
    if extents is None or element.is_scalable:
        return Allocations(symbolic=1)
    nbits = math.prod(extent for extent, _ in extents) * element.nbits
    return Allocations(count=1, nbytes=-(-nbits // 8))


def _difference(stock: IRModule, ours: IRModule) -> str | None:
    if tvm_ffi.structural_equal(stock, ours, map_free_vars=True):
        return None
    try:
        tvm.ir.assert_structural_equal(stock, ours, map_free_vars=True)
    except ValueError as mismatch:
        return str(mismatch)
    raise AssertionError("structural_equal and assert_structural_equal disagree")


def _run(pass_: Pass, mod: IRModule, name: str) -> IRModule:
    try:
        return pass_(mod)
    except Exception as error:  # a pass may raise anything
        (func,) = mod.functions.values()
        if left := left_to_lower(func):
            raise ValueError(not_lowered(name, left[0])) from error
        raise ValueError(
            f"function {name!r}: {pass_.info.name} fails: {first_line(error)}"
        ) from error
