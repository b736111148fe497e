# SPDX-License-Identifier: Apache-2.0
"""What is raised where layers are left alone, and how the reason is said."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import GlobalVar, Op
from tvm.ir.expr import Call

from passes.ir.relax_operators import CALL_TIR, PREFIX

UNFORESEEN = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What is raised where a kernel is none that can be cut, or none that anybody thought of.

`NotSliceableError` is a ValueError; TVM raises a TypeError or a ValueError for an expression that
it refuses, and else RuntimeErrors, schedules too; a node of a class that nobody thought of lacks an
attribute. None of them may end a build.
"""


def operator_of(value: Any) -> tuple[str, str]:
    """Return the name of what a binding calls, and why it is no layer that can be cut."""
    if isinstance(value, relax.If):
        return "if", "it is a branch"
    if not isinstance(value, Call):
        return type(value).__name__, "it is not a call"
    if isinstance(value.op, Op):
        name = str(value.op.name)
        if name == CALL_TIR:
            return name, ""
        return name.removeprefix(PREFIX), "it is not a call of a kernel"
    if isinstance(value.op, GlobalVar):
        return str(value.op.name_hint), "it calls another function"
    if isinstance(value.op, relax.ExternFunc):
        return str(value.op.global_symbol), "it is a packed function"
    return "call", "it calls what is not known here"
