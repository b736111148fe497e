# SPDX-License-Identifier: Apache-2.0
"""Checks at run time of what a plan took for granted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.ir import StringImm
from tvm.tirx import AssertStmt, IntImm, PrimFunc, SeqStmt

from passes.ir.structural import with_body
from passes.ir.symbolic_bounds import NO_LOWER, Bound
from passes.ir.whole_numbers import does_not_wrap


def assert_bounds(func: PrimFunc, bounds: Sequence[Bound]) -> PrimFunc:
    """Assert at the start of a function that variables, which have a value there, are in bounds."""
    checks = []
    for bound in bounds:
        name, value = bound.variable.name, bound.variable
        if not does_not_wrap(value.ty.dtype):
            value = value.astype("int64")  # A bound may be above what the type can hold.
        checks.append(
            _check(value <= IntImm(value.ty, bound.upper), f"{name} is above {bound.upper}")
        )
        if bound.lower > NO_LOWER:
            above = value >= IntImm(value.ty, bound.lower)
            checks.append(_check(above, f"{name} is below {bound.lower}"))
    return with_body(func, SeqStmt([*checks, func.body])) if checks else func


def _check(holds: Any, otherwise: str) -> AssertStmt:
    message = StringImm(f"{otherwise}, for which the memory was planned")
    return AssertStmt(holds, StringImm("ValueError"), [message])
