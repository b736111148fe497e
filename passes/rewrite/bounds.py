"""Checks at run time of what a plan took for granted."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.ir import StringImm, Var
from tvm.tirx import AssertStmt, IntImm, PrimFunc, SeqStmt

from passes.ir.structural import with_body


def assert_bounds(func: PrimFunc, bounds: Sequence[tuple[Var, int]]) -> PrimFunc:
    """Assert at the start of a function that variables are at most so much.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        It stays as it is.
    bounds : sequence of (tvm.ir.Var, int)
        Variables that have a value when the function begins.

    Returns
    -------
    tvm.tirx.PrimFunc
        The new function.
    """
    if not bounds:
        return func
    checks = [
        AssertStmt(
            var <= IntImm(var.ty, bound),
            StringImm("ValueError"),
            [StringImm(f"{var.name} is above {bound}, for which the memory was planned")],
        )
        for var, bound in bounds
    ]
    return with_body(func, SeqStmt([*checks, func.body]))
