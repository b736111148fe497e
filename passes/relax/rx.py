# SPDX-License-Identifier: Apache-2.0
"""The nodes of Relax: the one module that says which classes of TVM they are.

The stub beside this file has the fields of each, for type checkers. A program gets TVM's own
classes. The effects of operators are in `passes.ir.relax_operators`.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, relax

# Expressions
Function, ExternFunc, Call, If, SeqExpr = (
    relax.Function,
    relax.ExternFunc,
    relax.Call,
    relax.If,
    relax.SeqExpr,
)
Var, DataflowVar, Constant = relax.Var, relax.DataflowVar, ir.GenericConst
Tuple, TupleGetItem, ShapeExpr = relax.Tuple, relax.TupleGetItem, relax.ShapeExpr

Tensor = tvm.runtime.Tensor

# Bindings, which stand in blocks
Binding, VarBinding, MatchCast = relax.Binding, relax.VarBinding, relax.MatchCast
BindingBlock, DataflowBlock = relax.BindingBlock, relax.DataflowBlock

# Types
TensorType, TupleType, ShapeType, FuncType = (
    relax.TensorType,
    relax.TupleType,
    relax.ShapeType,
    relax.FuncType,
)

BlockBuilder, Normalize = relax.BlockBuilder, relax.transform.Normalize

free_vars, contains_impure_call = relax.analysis.free_vars, relax.analysis.contains_impure_call
post_order_visit = relax.analysis.post_order_visit
symbols_in_type = relax.analysis.tir_vars_in_type
definable_symbols_in_type = relax.analysis.definable_tir_vars_in_type
alloc_storage = relax.op.memory.alloc_storage
ensure_zero_offset, call_tir = relax.op.memory.ensure_zero_offset, relax.call_tir


def runtime_function(name: str) -> Any:
    """Return a function that a backend of TVM registers; None where there is none."""
    return tvm.get_global_func(name, allow_missing=True)


def update_type(expr: Any, ty: Any) -> None:
    """Give a new expression its type."""
    relax.expr._update_type(expr, ty)
