"""Checks at run time of what a plan took for granted."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.ir import StringImm
from tvm.tirx import AssertStmt, IntImm, PrimFunc, SeqStmt

from passes.ir.structural import with_body
from passes.ir.symbolic_bounds import Bound


def assert_bounds(func: PrimFunc, bounds: Sequence[Bound]) -> PrimFunc:
    """Assert at the start of a function that variables are at most so much.

    Parameters
    ----------
    func : tvm.tirx.PrimFunc
        It stays as it is.
    bounds : sequence of Bound
        Of variables that have a value when the function begins. That a variable is not below its
        bound is taken for granted.

    Returns
    -------
    tvm.tirx.PrimFunc
        The new function.
    """
    if not bounds:
        return func
    checks = [
        AssertStmt(
            bound.variable <= IntImm(bound.variable.ty, bound.upper),
            StringImm("ValueError"),
            [
                StringImm(
                    f"{bound.variable.name} is above {bound.upper}, "
                    "for which the memory was planned"
                )
            ],
        )
        for bound in bounds
    ]
    return with_body(func, SeqStmt([*checks, func.body]))
