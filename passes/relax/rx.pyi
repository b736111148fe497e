# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Mapping, Sequence
from typing import Any

class Node:
    span: Any
    def same_as(self, other: Any) -> bool: ...
    def __chandle__(self) -> int: ...

# Expressions

class Expr(Node):
    ty: Any

class Var(Expr):
    name: str
    def __init__(self, name: str, ty: Any = None, span: Any = None) -> None: ...

class DataflowVar(Var): ...

class Constant(Expr):
    value: Any

class Function(Expr):
    params: Sequence[Var]
    body: Any
    ret_ty: Any
    is_pure: bool
    attrs: Any
    def __init__(
        self,
        params: Sequence[Any],
        body: Any,
        ret_ty: Any = None,
        is_pure: bool = True,
        attrs: Any = None,
        span: Any = None,
    ) -> None: ...
    def with_attr(self, key: str | Mapping[str, Any], value: Any = None) -> Function: ...
    def without_attr(self, key: str) -> Function: ...

class ExternFunc(Expr):
    global_symbol: str
    def __init__(self, global_symbol: str) -> None: ...

class Call(Expr):
    op: Any
    args: Sequence[Any]
    attrs: Any
    ty_args: Any
    def __init__(
        self,
        op: Any,
        args: Sequence[Any],
        attrs: Any = None,
        ty_args: Any = None,
        span: Any = None,
        ret_ty: Any = None,
    ) -> None: ...

class If(Expr):
    cond: Any
    true_branch: Any
    false_branch: Any

class SeqExpr(Expr):
    blocks: Sequence[Any]
    body: Any
    def __init__(self, blocks: Sequence[Any], body: Any, span: Any = None) -> None: ...

class Tuple(Expr):
    fields: Sequence[Any]
    def __init__(self, fields: Sequence[Any], span: Any = None) -> None: ...

class TupleGetItem(Expr):
    tuple_value: Any
    index: int
    def __init__(self, tuple_value: Any, index: int, span: Any = None) -> None: ...

class ShapeExpr(Expr):
    values: Sequence[Any]
    def __init__(self, values: Sequence[Any], span: Any = None) -> None: ...

class Tensor(Node): ...

# Bindings, which stand in blocks

class Binding(Node):
    var: Var
    value: Any

class VarBinding(Binding):
    def __init__(self, var: Any, value: Any, span: Any = None) -> None: ...

class MatchCast(Binding):
    ty: Any

class BindingBlock(Node):
    bindings: Sequence[Any]
    def __init__(self, bindings: Sequence[Any], span: Any = None) -> None: ...

class DataflowBlock(BindingBlock): ...

# Types

class TensorType(Node):
    shape: Any
    dtype: Any
    ndim: int

class TupleType(Node):
    fields: Sequence[Any]
    def __init__(self, fields: Sequence[Any]) -> None: ...

class ShapeType(Node):
    values: Any

class FuncType(Node):
    def __init__(self, params: Sequence[Any], ret: Any) -> None: ...

Normalize: Any

class BlockBuilder:
    def __init__(self, mod: Any = None) -> None: ...
    def __getattr__(self, name: str) -> Any: ...

def free_vars(expr: Any) -> Sequence[Any]: ...
def contains_impure_call(expr: Any) -> bool: ...
def post_order_visit(expr: Any, visit: Callable[[Any], None]) -> None: ...
def symbols_in_type(ty: Any) -> Sequence[Any]: ...
def definable_symbols_in_type(ty: Any) -> Sequence[Any]: ...
def alloc_storage(size: Any, device: int, scope: str, dtype: str) -> Any: ...
def ensure_zero_offset(tensor: Any) -> Any: ...
def call_tir(function: Any, args: Any, out_ty: Any) -> Any: ...
def runtime_function(name: str) -> Any: ...
def update_type(expr: Any, ty: Any) -> None: ...
