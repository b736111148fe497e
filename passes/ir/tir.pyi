# SPDX-License-Identifier: Apache-2.0
from collections import abc
from enum import IntEnum
from typing import Any, TypeGuard

class Node:
    def same_as(self, other: Any) -> bool: ...
    def __chandle__(self) -> int: ...

# Types. Sizes are counted in elements, and alignments in bytes.

class PrimType(Node):
    dtype: Any
    def __init__(self, dtype: Any) -> None: ...

class PointerType(Node):
    element_type: Any
    storage_scope: str
    def __init__(self, element_type: Any, storage_scope: str = "") -> None: ...

class BufferType(Node):
    dtype: PrimType
    shape: abc.Sequence[Any]
    strides: abc.Sequence[Any]
    elem_offset: Any
    storage_scope: str
    data_alignment: int
    offset_factor: int
    allocated_addr: abc.Sequence[Any]

# Expressions

class Expr(Node):
    ty: Any
    def __add__(self, other: Any) -> Any: ...
    def __radd__(self, other: Any) -> Any: ...
    def __sub__(self, other: Any) -> Any: ...
    def __rsub__(self, other: Any) -> Any: ...
    def __mul__(self, other: Any) -> Any: ...
    def __rmul__(self, other: Any) -> Any: ...
    def __lt__(self, other: Any) -> Any: ...
    def __le__(self, other: Any) -> Any: ...
    def __gt__(self, other: Any) -> Any: ...
    def __ge__(self, other: Any) -> Any: ...
    def astype(self, dtype: Any) -> Any: ...

class Var(Expr):
    name: str
    data: Any  # The address of a buffer's memory
    def scope(self) -> str: ...
    def __init__(self, name: str, ty: Any) -> None: ...
    def with_allocated_addr(self, addresses: abc.Sequence[Any]) -> Var: ...

class GlobalVar(Expr):
    name_hint: str
    def __init__(self, name_hint: str) -> None: ...

class Load(Expr):
    source: Var
    indices: abc.Sequence[Any]

class Call(Expr):
    op: Any
    args: abc.Sequence[Any]
    attrs: Any
    ty_args: Any
    span: Any
    def __init__(
        self,
        op: Any,
        args: abc.Sequence[Any],
        attrs: Any = None,
        ty_args: Any = None,
        span: Any = None,
        ret_ty: Any = None,
    ) -> None: ...

class Let(Expr):
    var: Var
    value: Any
    body: Any
    def __init__(self, var: Var, value: Any, body: Any) -> None: ...

class Select(Expr):
    condition: Any
    true_value: Any
    false_value: Any
    def __init__(self, condition: Any, true_value: Any, false_value: Any) -> None: ...

class Cast(Expr):
    value: Any
    def __init__(self, dtype: Any, value: Any) -> None: ...

class Ramp(Expr):
    base: Any
    stride: Any
    lanes: Any
    def __init__(self, base: Any, stride: Any, lanes: Any) -> None: ...

class Broadcast(Expr):
    value: Any
    lanes: Any
    def __init__(self, value: Any, lanes: Any) -> None: ...

class IntConstant(Expr):
    value: int
    def __int__(self) -> int: ...
    def __init__(self, dtype: Any, value: int) -> None: ...

class FloatConstant(Expr):
    value: float
    def __init__(self, dtype: Any, value: float) -> None: ...

class StringConstant(Expr):
    value: str
    def __init__(self, value: str) -> None: ...

# Statements. Definitions are in scope for the rest of the statements beside them.

class Statement(Node): ...

class Sequence(Statement):
    seq: abc.Sequence[Any]
    def __init__(self, seq: abc.Sequence[Any]) -> None: ...

class Allocation(Statement):
    buffer: Var
    annotations: abc.Mapping[str, Any]
    def __init__(self, buffer: Var, annotations: abc.Mapping[str, Any] | None = None) -> None: ...

class Declaration(Statement):
    buffer: Var
    data: Any  # The address of the memory that is there
    def __init__(self, buffer: Var, data: Any) -> None: ...

class Binding(Statement):
    var: Var
    value: Any
    def __init__(self, var: Var, value: Any) -> None: ...

class Store(Statement):
    buffer: Var
    value: Any
    indices: abc.Sequence[Any]
    def __init__(self, buffer: Var, value: Any, indices: abc.Sequence[Any]) -> None: ...

class Evaluation(Statement):
    value: Any
    def __init__(self, value: Any) -> None: ...

class Return(Statement):
    value: Any

class Assertion(Statement):
    condition: Any
    def __init__(self, condition: Any, kind: StringConstant, parts: abc.Sequence[Any]) -> None: ...

class LoopKind(IntEnum):
    SERIAL = 0
    PARALLEL = 1
    VECTORIZED = 2
    UNROLLED = 3
    THREAD_BINDING = 4

class Loop(Statement):
    loop_var: Var
    min: Any
    extent: Any  # The number of iterations
    step: Any  # None for 1
    kind: int
    body: Any
    thread_binding: Any
    annotations: abc.Mapping[str, Any]
    def __init__(
        self,
        loop_var: Var,
        min: Any,
        extent: Any,
        kind: int,
        body: Any,
        thread_binding: Any = None,
        annotations: abc.Mapping[str, Any] | None = None,
        step: Any = None,
    ) -> None: ...

class While(Statement):
    condition: Any
    body: Any

class If(Statement):
    condition: Any
    then_case: Any
    else_case: Any
    def __init__(self, condition: Any, then_case: Any, else_case: Any) -> None: ...

class Attribute(Statement):
    node: Any
    attr_key: str
    value: Any
    body: Any
    def __init__(self, node: Any, attr_key: str, value: Any, body: Any) -> None: ...

class TilePrimitive(Statement):
    args: abc.Sequence[Any]
    workspace: abc.Mapping[str, Var]

class Block(Statement):
    alloc_buffers: abc.Sequence[Var]
    body: Any

class BlockRealize(Statement):
    iter_values: abc.Sequence[Any]
    predicate: Any
    block: Any

class PrimFunc(Node):
    params: abc.Sequence[Var]
    body: Any
    attrs: Any
    ret_type: Any
    def __init__(self, params: abc.Sequence[Var], body: Any, *others: Any) -> None: ...
    def with_attr(self, key: str | abc.Mapping[str, Any], value: Any = None) -> PrimFunc: ...
    def without_attr(self, key: str) -> PrimFunc: ...
    def script(self, **options: Any) -> str: ...

def constant(expr: Any) -> int | None: ...
def is_buffer(variable: Any) -> bool: ...
def new_buffer(
    shape: abc.Sequence[Any], dtype: Any, name: str, *, layout: Any = None, **ty: Any
) -> Var: ...
def new_load(buffer: Var, indices: abc.Sequence[Any]) -> Load: ...
def is_thread_extent(op: Any) -> TypeGuard[Attribute]: ...
