"""What a Relax function does with memory: which tensors can be planned, when they live, weights.

Read off a function as it stands right before `StaticPlanBlockMemory`: every tensor that a kernel
writes is made by ``R.builtin.alloc_tensor``, and kernels are called on tensors.

A variable may refer to several of these tensors: through names, reshapes, views and tuples, and
through an `if` to those of either branch. Each touch of a variable touches all that it may refer
to. A tensor that may outlive the function, or that something unknown may keep, is left to the run
time, and so is one whose size has no bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst, GlobalVar, PrimType, StringImm
from tvm.runtime import Tensor
from tvm.tirx import IntImm, PrimFunc

from passes.analysis.relax.branch_ranges import BlockStack, Branches, live_ranges
from passes.analysis.relax.callees import CALL_TIR_DYN, Callee, classify
from passes.analysis.relax.sizes import Sizes, UnknownSizeError
from passes.ir.symbolic_bounds import Bound
from passes.planning import Buffer, Problem
from passes.planning.problem import LiveRange
from passes.planning.ranges import join_ranges
from target_hw.memory import MemoryScope

SCOPE = "global"
"""The memory that is planned: that of device 0."""

NUM_INPUT = "num_input"
"""The function attribute that says how many parameters come before the weights."""


@dataclass(frozen=True)
class Storage:
    """Memory for one tensor, or for tensors of different branches that become one value.

    Parameters
    ----------
    name : str
        The name of the first tensor's binding; made unique within the function.
    size : int
        Bytes of the largest tensor, as its shape's upper bounds have it.
    live : tuple of LiveRange
        Positions from the first touch to the last, on each path.
    tensors : tuple of str
        The names of the bindings that allocate the tensors, in program order.
    """

    name: str
    size: int
    live: tuple[LiveRange, ...]
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class LeftToRuntime:
    """A tensor that is not planned, and why.

    Parameters
    ----------
    name : str
        The name of the binding, or of the parameter.
    size : int or None
        Bytes, or their upper bound; None where not even that is known.
    reason : str
        In a few words.
    """

    name: str
    size: int | None
    reason: str


@dataclass(frozen=True)
class Weight:
    """A tensor that is there before the function runs, and stays.

    Parameters
    ----------
    name : str
        That of the parameter (with the way into it, where it is a tuple), or ``constant_0``,
        ``constant_1``, ... in the order in which they are first met.
    size : int
        Bytes.
    data : int or None
        Tells one constant's data from another's, within one process; None for a parameter.
    """

    name: str
    size: int
    data: int | None = None


@dataclass(frozen=True, eq=False)
class RelaxMemory:
    """What there is to plan in one Relax function.

    Attributes
    ----------
    name : str
        Its global name.
    func : tvm.relax.Function
        What was read.
    storages : tuple of Storage
        In the order in which they are first touched.
    left : tuple of LeftToRuntime
        In program order.
    weights : tuple of Weight
        Parameters first, then constants.
    bounds : tuple of Bound
        Of the symbolic dimensions that the sizes of the storages rest on.
    bindings : tuple of str
        The name of the binding at each position.
    calls : tuple of str
        Relax functions of the module that it calls or hands on, sorted.
    hands_on : tuple of str
        Those of them that it hands on as values, sorted.
    calls_unknown : bool
        Whether it calls something that may call any function that was handed on.
    storage_of : mapping of int to str
        By handle of the variable of an allocating binding: its storage's name.
    """

    name: str
    func: relax.Function
    storages: tuple[Storage, ...]
    left: tuple[LeftToRuntime, ...]
    weights: tuple[Weight, ...]
    bounds: tuple[Bound, ...]
    bindings: tuple[str, ...]
    calls: tuple[str, ...]
    hands_on: tuple[str, ...]
    calls_unknown: bool
    storage_of: Mapping[int, str]

    def all_left(self, reason: str) -> RelaxMemory:
        """Return the same with every storage left to the run time."""
        left = (
            LeftToRuntime(tensor, storage.size, reason)
            for storage in self.storages
            for tensor in storage.tensors
        )
        return replace(self, storages=(), storage_of={}, bounds=(), left=(*self.left, *left))

    def problem(self, memory: MemoryScope) -> Problem:
        """Return the storages as buffers that compete for a memory."""
        buffers = tuple(Buffer(s.name, s.size, s.live) for s in self.storages)
        return Problem(buffers, memory, name=f"function {self.name!r}")

    def binding_at(self, position: int) -> str:
        """Return how messages call a position."""
        return f"binding {self.bindings[position]!r}"


def read_relax_memory(
    mod: tvm.IRModule, variable: GlobalVar, upper_bounds: Mapping[str, int] | None = None
) -> RelaxMemory:
    """Read one Relax function of a module.

    Parameters
    ----------
    mod : tvm.IRModule
        After `CallTIRRewrite`.
    variable : tvm.ir.GlobalVar
        The function.
    upper_bounds : mapping of str to int, optional
        Most elements of symbolic dimensions of the signature, by name, where the function's
        attribute ``tir_var_upper_bound`` does not name them.

    Returns
    -------
    RelaxMemory
        What there is to plan.

    Raises
    ------
    ValueError
        When the function is not in the form that this reads: a dataflow block is left in, an
        operator has yet to be lowered, memory is planned already, a variable is used where it is
        not defined. The message names the binding.
    """
    return _Reader(mod, variable, upper_bounds or {}).read()


# ------------------------------------------------------------------ what a variable may refer to


@dataclass(frozen=True)
class _Value:
    """The tensors that an expression may refer to, and its fields where it is a known tuple."""

    tensors: tuple[int, ...] = ()
    fields: tuple[_Value, ...] | None = None


_NOTHING = _Value()


def _union(values: Iterable[_Value]) -> tuple[int, ...]:
    return tuple(sorted({tensor for value in values for tensor in value.tensors}))


def _tuple(fields: Iterable[_Value]) -> _Value:
    fields = tuple(fields)
    return _Value(_union(fields), fields)


@dataclass(eq=False)
class _Tensor:
    """One ``R.builtin.alloc_tensor``."""

    name: str
    variable: Any
    path: tuple[tuple[int, int], ...]
    size: int | None = None
    bounds: tuple[Bound, ...] = ()
    left: str | None = None
    touched: bool = False


def _are_exclusive(first: _Tensor, second: _Tensor) -> bool:
    """Whether no path through the function allocates both: they are in two branches of one `if`."""
    for (one, taken), (other, other_taken) in zip(first.path, second.path, strict=False):
        if one != other:
            return False
        if taken != other_taken:
            return True
    return False


# ------------------------------------------------------------------------------------ the reader


class _Reader:
    def __init__(
        self, mod: tvm.IRModule, variable: GlobalVar, upper_bounds: Mapping[str, int]
    ) -> None:
        self._mod = mod
        self._name = str(variable.name_hint)
        self._func = mod[variable]
        self._sizes = Sizes(self._func, upper_bounds)
        self._values: dict[int, _Value] = {}
        self._defined: list[int] = []
        self._blocks = BlockStack()
        self._path: list[tuple[int, int]] = []
        self._bindings: list[str] = []
        self._tensors: list[_Tensor] = []
        self._inner: list[LeftToRuntime] = []
        self._same: list[int] = []
        self._members: dict[int, list[int]] = {}
        self._constants: dict[int, Weight] = {}
        self._unsized: list[LeftToRuntime] = []
        self._calls: set[str] = set()
        self._hands_on: set[str] = set()
        self._calls_unknown = False
        self._used: set[int] | None = None
        self._callees: dict[int, tuple[Callee, str]] = {}

    def read(self) -> RelaxMemory:
        func = self._func
        parameters = list(self._parameter_weights())
        for param in func.params:
            self._define(param, _NOTHING)
        self._leave(self._sequence(func.body), "returned")
        self._blocks.root.end = len(self._bindings)
        storages, storage_of, bounds = self._storages()
        left = [LeftToRuntime(t.name, t.size, t.left) for t in self._tensors if t.left is not None]
        return RelaxMemory(
            name=self._name,
            func=func,
            storages=storages,
            left=(*self._unsized, *left, *self._inner),
            weights=(*parameters, *self._constants.values()),
            bounds=bounds,
            bindings=tuple(self._bindings),
            calls=tuple(sorted(self._calls)),
            hands_on=tuple(sorted(self._hands_on)),
            calls_unknown=self._calls_unknown,
            storage_of=storage_of,
        )

    # Bindings

    def _sequence(self, expr: Any) -> _Value:
        if not isinstance(expr, relax.SeqExpr):
            return self._value(expr)
        for block in expr.blocks:
            if isinstance(block, relax.DataflowBlock):
                first = (
                    f", with binding {str(block.bindings[0].var.name)!r}" if block.bindings else ""
                )
                raise ValueError(f"a dataflow block is left in{first}: run ToNonDataflow first")
            for binding in block.bindings:
                self._bind(binding)
        return self._value(expr.body)

    def _bind(self, binding: Any) -> None:
        variable, value = binding.var, binding.value
        self._bindings.append(str(variable.name))
        if isinstance(value, relax.Function):
            self._define(variable, _NOTHING)  # It may call itself.
            self._local_function(value)
        elif isinstance(value, relax.Call) and isinstance(binding, relax.VarBinding):
            self._define(variable, self._call(value, variable))
        else:
            self._define(variable, self._value(value))

    def _define(self, variable: Any, value: _Value) -> None:
        handle = variable.__chandle__()
        self._values[handle] = value
        self._defined.append(handle)

    @property
    def _position(self) -> int:
        return len(self._bindings) - 1

    # Expressions

    def _value(self, expr: Any) -> _Value:
        """Return what an expression may refer to."""
        if isinstance(expr, GlobalVar):
            self._hand_on(expr)
        elif isinstance(expr, relax.Var):
            return self._variable(expr)
        elif isinstance(expr, relax.Tuple):
            return _tuple([self._value(field) for field in expr.fields])
        elif isinstance(expr, relax.TupleGetItem):
            whole = self._value(expr.tuple_value)
            return whole if whole.fields is None else whole.fields[int(expr.index)]
        elif isinstance(expr, relax.Call):
            return self._call(expr, None)
        elif isinstance(expr, GenericConst):
            self._constant(expr)
        elif isinstance(expr, relax.If):
            return self._if(expr)
        elif isinstance(expr, relax.SeqExpr):
            return self._sequence(expr)
        elif isinstance(expr, relax.Function):
            self._local_function(expr)
        # What is left has no tensor in it: shapes, numbers, strings, names of functions.
        return _NOTHING

    def _variable(self, variable: Any) -> _Value:
        value = self._values.get(variable.__chandle__())
        if value is not None:
            return value
        if isinstance(variable.ty, PrimType):
            return _NOTHING
        cycle = self._alias_cycle(variable)
        if cycle:
            raise ValueError(f"{self._here()}: these are names of each other: {' = '.join(cycle)}")
        raise ValueError(
            f"{self._here()}: uses {str(variable.name)!r}, which is not defined on the way to it"
        )

    def _here(self) -> str:
        return f"binding {self._bindings[-1]!r}" if self._bindings else "its body"

    def _alias_cycle(self, variable: Any) -> list[str]:
        """Return the names of variables that are each defined as the next one, around a circle."""
        sources: dict[int, tuple[Any, Any]] = {}

        def note(expr: Any) -> None:
            if isinstance(expr, relax.SeqExpr):
                for block in expr.blocks:
                    for binding in block.bindings:
                        sources[binding.var.__chandle__()] = (
                            binding.var,
                            self._source(binding.value),
                        )

        relax.analysis.post_order_visit(self._func, note)
        chain: dict[int, str] = {}
        at = variable
        while at is not None and at.__chandle__() not in chain:
            chain[at.__chandle__()] = str(at.name)
            at = sources.get(at.__chandle__(), (None, None))[1]
        if at is None:
            return []
        names = list(chain.values())[list(chain).index(at.__chandle__()) :]
        return [*names, names[0]]

    def _source(self, value: Any) -> Any:
        """Return the variable that a binding gives another name to, or None."""
        if isinstance(value, relax.Call) and self._classify(value.op)[0] is Callee.ALIASES:
            value = value.args[0]
        return value if isinstance(value, relax.Var) else None

    def _if(self, expr: Any) -> _Value:
        self._touch(self._value(expr.cond))
        branches = Branches(self._position)
        results = []
        for taken, branch in enumerate((expr.true_branch, expr.false_branch)):
            outside = len(self._defined)
            self._blocks.enter(branches, len(self._bindings))
            self._path.append((branches.position, taken))
            results.append(self._sequence(branch))
            self._path.pop()
            self._blocks.leave(len(self._bindings))
            for handle in self._defined[outside:]:
                del self._values[handle]
            del self._defined[outside:]
        return self._either(*results)

    def _either(self, first: _Value, second: _Value) -> _Value:
        """Return what is one value or the other; their memory is one where that can be."""
        one, other = first.fields, second.fields
        if one is not None and other is not None and len(one) == len(other):
            return _tuple([self._either(a, b) for a, b in zip(one, other, strict=True)])
        if one is None and other is None and len(first.tensors) == len(second.tensors) == 1:
            self._become_one(first.tensors[0], second.tensors[0])
        return _Value(_union((first, second)))

    def _local_function(self, function: Any) -> None:
        """Leave alone what a function within the function captures and allocates."""
        for variable in relax.analysis.free_vars(function):
            if not isinstance(variable.ty, PrimType):
                self._leave(self._variable(variable), f"captured by {self._here()}")

        def note(expr: Any) -> None:
            if isinstance(expr, relax.SeqExpr):
                for block in expr.blocks:
                    for binding in block.bindings:
                        self._note_inner(binding)
            elif isinstance(expr, GenericConst):
                self._constant(expr)
            elif isinstance(expr, GlobalVar):
                self._hand_on(expr)

        relax.analysis.post_order_visit(function, note)

    def _note_inner(self, binding: Any) -> None:
        value = binding.value
        if not isinstance(value, relax.Call):
            return
        callee, what = self._classify(value.op)
        self._refuse(callee, what)
        if callee is Callee.ALLOCATES:
            reason = f"allocated within the function that {self._here()} makes"
            self._inner.append(LeftToRuntime(str(binding.var.name), None, reason))

    # Calls

    def _call(self, call: Any, variable: Any) -> _Value:
        callee, what = self._classify(call.op)
        self._refuse(callee, what)
        if callee is Callee.ALLOCATES:
            return self._allocate(call, variable)
        if isinstance(call.op, relax.Var) and not isinstance(call.op, GlobalVar):
            self._value(call.op)
        arguments = list(call.args)
        if isinstance(call.op, tvm.ir.Op) and call.op.name == CALL_TIR_DYN:
            arguments = list(call.args[1].fields)
        values = [self._value(argument) for argument in arguments]
        if callee is Callee.ALIASES:
            return values[0] if values[0].fields is None else _Value(values[0].tensors)
        if callee is Callee.READS or self._is_destination_passing(call, variable, values):
            for value in values:
                self._touch(value)
        elif callee is not Callee.FREES:
            if callee is Callee.CALLS:
                self._calls.add(str(call.op.name_hint))
            else:
                self._calls_unknown = True
            for value in values:
                self._leave(value, f"passed to {what} by {self._here()}")
        return _NOTHING

    def _refuse(self, callee: Callee, what: str) -> None:
        if callee is Callee.HIGH_LEVEL:
            raise ValueError(
                f"{self._here()}: {what} has yet to be lowered: run LegalizeOps and "
                "CallTIRRewrite first"
            )
        if callee is Callee.PLANNED:
            raise ValueError(
                f"{self._here()}: {what} is memory that is planned already: this pass takes the "
                "place of StaticPlanBlockMemory, and runs once"
            )

    def _is_destination_passing(self, call: Any, variable: Any, values: list[_Value]) -> bool:
        """Whether a packed function is called as `CallTIRRewrite` leaves ``R.call_dps_packed``.

        That is: the call is not said to return anything, its result is not used, and its last
        argument is a tensor that is allocated and not yet written. Such a function writes it from
        the other arguments, and keeps nothing.
        """
        if not isinstance(call.op, relax.ExternFunc) or len(call.ty_args) or not values:
            return False
        if variable is not None and self._is_used(variable):
            return False
        last = values[-1].tensors
        return len(last) == 1 and not self._tensors[last[0]].touched

    def _is_used(self, variable: Any) -> bool:
        if self._used is None:
            used: set[int] = set()

            def note(expr: Any) -> None:
                if isinstance(expr, relax.Var):
                    used.add(expr.__chandle__())

            relax.analysis.post_order_visit(self._func, note)
            self._used = used
        return variable.__chandle__() in self._used

    def _classify(self, op: Any) -> tuple[Callee, str]:
        handle = op.__chandle__()
        if handle not in self._callees:
            self._callees[handle] = classify(self._mod, op)
        return self._callees[handle]

    def _hand_on(self, function: GlobalVar) -> None:
        """Note that a function is used as a value: something else may call it."""
        if function in self._mod.functions and isinstance(self._mod[function], PrimFunc):
            return
        self._calls.add(str(function.name_hint))
        self._hands_on.add(str(function.name_hint))

    # Tensors

    def _allocate(self, call: Any, variable: Any) -> _Value:
        tensor = _Tensor(self._bindings[-1], variable, tuple(self._path))
        index = len(self._tensors)
        self._tensors.append(tensor)
        self._same.append(index)
        self._members[index] = [index]
        shape, dtype, device, scope = call.args
        values = shape.values if isinstance(shape, relax.ShapeExpr) else None
        if values is None and isinstance(shape.ty, relax.ShapeType):
            values = shape.ty.values
        if values is None:
            tensor.left = "its shape is known at run time only"
            return _Value((index,))
        try:
            tensor.size, tensor.bounds = self._sizes.bytes_of(values, dtype.value)
        except UnknownSizeError as error:
            tensor.left = str(error)
        if variable is None:
            tensor.left = "it is not bound to a variable"
        elif not isinstance(scope, StringImm) or str(scope.value) != SCOPE:
            tensor.left = f"it is in scope {str(scope.value)!r}, not in {SCOPE!r}"
        elif not isinstance(device, IntImm) or int(device.value) != 0:
            tensor.left = f"it is on device {device}, not on device 0"
        elif tensor.size == 0:
            tensor.left = "it has no bytes"
        return _Value((index,))

    def _touch(self, value: _Value) -> None:
        for index in value.tensors:
            self._tensors[index].touched = True
            self._blocks.touch(index, self._position)

    def _leave(self, value: _Value, reason: str) -> None:
        for index in value.tensors:
            tensor = self._tensors[index]
            tensor.touched = True
            if tensor.left is None:
                tensor.left = reason

    # One memory for the tensors of different branches

    def _class_of(self, index: int) -> int:
        while self._same[index] != index:
            self._same[index] = self._same[self._same[index]]
            index = self._same[index]
        return index

    def _become_one(self, first: int, second: int) -> None:
        one, other = sorted((self._class_of(first), self._class_of(second)))
        if one == other:
            return
        ones, others = self._members[one], self._members[other]
        if all(_are_exclusive(self._tensors[a], self._tensors[b]) for a in ones for b in others):
            self._same[other] = one
            ones += self._members.pop(other)

    def _storages(self) -> tuple[tuple[Storage, ...], dict[int, str], tuple[Bound, ...]]:
        classes: dict[int, list[tuple[_Tensor, tuple[LiveRange, ...]]]] = {}
        for index, tensor in enumerate(self._tensors):
            if tensor.left is not None:
                continue
            live = live_ranges(self._blocks.root, index)
            if live:
                classes.setdefault(self._class_of(index), []).append((tensor, live))
            else:
                tensor.left = "nothing uses it"
        found = []
        taken: set[str] = set()
        storage_of: dict[int, str] = {}
        bounds: dict[int, Bound] = {}
        for members in classes.values():
            name = _unique(members[0][0].name, taken)
            live = join_ranges(span for _, spans in members for span in spans)
            size = max(tensor.size or 0 for tensor, _ in members)
            found.append(Storage(name, size, live, tuple(tensor.name for tensor, _ in members)))
            for tensor, _ in members:
                storage_of[tensor.variable.__chandle__()] = name
                bounds.update((b.variable.__chandle__(), b) for b in tensor.bounds)
        found.sort(key=lambda storage: storage.live[0][0])
        return tuple(found), storage_of, tuple(bounds.values())

    # Weights

    def _parameter_weights(self) -> Iterator[Weight]:
        inputs = self._func.attrs.get(NUM_INPUT) if self._func.attrs else None
        if inputs is None:
            return
        if not 0 <= int(inputs) <= len(self._func.params):
            raise ValueError(
                f"attribute {NUM_INPUT!r} is {int(inputs)}, the function has "
                f"{len(self._func.params)} parameters"
            )
        for param in self._func.params[int(inputs) :]:
            yield from self._weights_within(str(param.name), param.ty)

    def _weights_within(self, name: str, ty: Any) -> Iterator[Weight]:
        if isinstance(ty, relax.TupleType):
            for index, field in enumerate(ty.fields):
                yield from self._weights_within(f"{name}[{index}]", field)
            return
        reason = "a weight that is no tensor"
        if isinstance(ty, relax.TensorType):
            reason = "a weight whose shape or type is not known"
            if isinstance(ty.shape, relax.ShapeExpr) and ty.dtype is not None:
                try:
                    yield Weight(name, self._sizes.bytes_of(ty.shape.values, ty.dtype.dtype)[0])
                    return
                except UnknownSizeError as error:
                    reason = f"a weight whose {error}"
        self._unsized.append(LeftToRuntime(name, None, reason))

    def _constant(self, constant: Any) -> None:
        data = constant.value
        if not isinstance(data, Tensor):
            return
        handle = data.__chandle__()
        if handle not in self._constants:
            size, _ = self._sizes.bytes_of(constant.ty.shape.values, constant.ty.dtype.dtype)
            names = {str(param.name) for param in self._func.params}
            name = _unique(f"constant_{len(self._constants)}", names)
            self._constants[handle] = Weight(name, size, handle)


def _unique(name: str, taken: set[str]) -> str:
    """Return a name that is not taken, with a number where needed, and take it."""
    chosen, count = name, 0
    while chosen in taken:
        count += 1
        chosen = f"{name}_{count}"
    taken.add(chosen)
    return chosen


def functions_in_order(mod: tvm.IRModule) -> list[tuple[GlobalVar, Any]]:
    """Return the Relax functions of a module, sorted by name."""
    named = {str(v.name_hint): v for v in mod.get_global_vars()}
    return [
        (named[name], mod[named[name]])
        for name in sorted(named)
        if isinstance(mod[named[name]], relax.Function)
    ]
