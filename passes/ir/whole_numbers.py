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

from passes.ir.structural import nodes_in

_MAY_WRAP = (Add, Sub, Mul, LShift, Cast)


def does_not_wrap(dtype: Any) -> bool:
    """Whether sums and products of a type, scalar or vector, are those of whole numbers."""
    return bool(dtype.bits >= 32 and str(dtype).startswith("int"))


def never_wraps(expr: Any) -> bool:
    """Whether no sum, product or cast in an integer expression wraps."""
    if isinstance(expr, (IntImm, Var)):
        return True
    return not any(map(_may_wrap, nodes_in(expr, *_MAY_WRAP)))


def _may_wrap(op: Any) -> bool:
    new = op.ty.dtype
    if isinstance(op, Cast):
        old = op.value.ty.dtype
        if old.bits <= new.bits and old.type_code == new.type_code:
            return False
    return not does_not_wrap(new)
