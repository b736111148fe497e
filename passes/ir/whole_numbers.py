# SPDX-License-Identifier: Apache-2.0
"""Whether arithmetic in the IR is that of whole numbers.

TVM takes ``int32`` and ``int64`` never to overflow. What it computes in other types wraps, and its
analyses do not see that.
"""

from __future__ import annotations

from typing import Any

from tvm.ir import Var
from tvm.ir.prim import Add, LShift, Mul, Sub
from tvm.tirx import Cast, IntImm

from passes.ir.structural import structural_walk

_MAY_WRAP = (Add, Sub, Mul, LShift)


def does_not_wrap(dtype: Any) -> bool:
    """Whether sums and products of a type, scalar or vector, are those of whole numbers."""
    return bool(dtype.bits >= 32 and str(dtype).startswith("int"))


def never_wraps(expr: Any) -> bool:
    """Whether no sum, product or cast in an integer expression wraps."""
    if isinstance(expr, (IntImm, Var)):
        return True
    wrapping = []

    def note(op: Any) -> None:
        if not does_not_wrap(op.ty.dtype):
            wrapping.append(op)

    def note_cast(op: Cast) -> None:
        old, new = op.value.ty.dtype, op.ty.dtype
        is_wider = old.bits <= new.bits and old.type_code == new.type_code
        if not (is_wider or does_not_wrap(new)):
            wrapping.append(op)

    structural_walk(expr, [*((kind, note) for kind in _MAY_WRAP), (Cast, note_cast)])
    return not wrapping
