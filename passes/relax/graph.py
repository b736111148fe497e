# SPDX-License-Identifier: Apache-2.0
"""Memory of a Relax function: tensors that can be planned, their live ranges, weights.

Read off a function as it stands right before `StaticPlanBlockMemory`: every tensor that a kernel
writes is made by ``R.builtin.alloc_tensor``, and kernels are called on tensors.

A variable may refer to several of these tensors: through names, reshapes, views and tuples, and
through an `if` to those of either branch. Each touch of a variable touches all of them. A tensor
that something unknown may keep is left to the runtime; an operator that has yet to be lowered is
unknown in that sense, since what it becomes may return the tensor that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from typing import Any

from passes.ir import IRModule, PrimFunc, items, nodes_in, tir, unique_name
from passes.ir.operators import operator_name
from passes.ir.relax_operators import (
    ALLOC_TENSOR,
    CALL_TIR_DYN,
    RESHAPES,
    RETURNED_ARGUMENTS,
    Callee,
)
from passes.planning import LiveRange, Problem
from passes.relax import rx
from passes.relax.bindings import classify, known_at_entry, variables_in
from passes.relax.facts import PLANS_RESULTS, SCOPE, LeftToRuntime, RelaxMemory, Weight
from passes.relax.kernel_arguments import kernel_uses
from passes.relax.sizes import Sizes, weights_within
from passes.relax.tensors import (
    NO_BYTES,
    NO_TENSORS,
    RETURNED,
    UNCAPTURED,
    AllocatedTensor,
    TensorValue,
    either,
    fill_in,
    group_tensors,
    tuple_of,
)
from target_hw.memory import MemoryScope

NUM_INPUT = "num_input"
"""The function attribute that says how many parameters come before the weights."""

_PASSED = "passed to "  # The beginning of a reason: something unknown may keep the tensor


def read_relax_memory(
    mod: IRModule,
    variable: tir.GlobalVar,
    upper_bounds: Mapping[str, int],
    alignment: int,
    keeps_storages: bool,
    offsets_in_kernels: bool,
    host: int | None = None,
) -> RelaxMemory:
    """Read one Relax function of a module, whose tensors stand at multiples of an alignment.

    `host` is the index of the device that is the host, if there is one.

    With `keeps_storages`, `RewriteCUDAGraph` is to keep storages of constant size from call to
    call, and captures kernels that touch nothing else: results and values of branches are apart
    from all others. It launches a region across an `if` before that `if`, so a tensor that a branch
    touches lives until the region ends. A variable that is used where it is not defined is a
    ValueError.
    """
    reader = _Reader(mod, variable, upper_bounds, keeps_storages, host)
    return reader.read(alignment, offsets_in_kernels)


class _Reader:
    def __init__(
        self,
        mod: IRModule,
        variable: tir.GlobalVar,
        upper_bounds: Mapping[str, int],
        keeps_storages: bool,
        host: int | None,
    ) -> None:
        self._host = host
        # The callee, the variable that the call is bound to, and the tensors of each argument.
        self._given: list[tuple[Any, Any, list[tuple[AllocatedTensor, ...]]]] = []
        self._mod = mod
        self._name = str(variable.name_hint)
        self._func = mod[variable]
        self._keeps_storages = keeps_storages
        self._sizes = Sizes(self._func, upper_bounds)
        self._values: dict[int, TensorValue] = {}
        # Tuples of which only single fields are read, by the handles of their variables. TVM takes
        # these from where a tuple is made, and ends what is read last: so such a tuple never ends.
        self._unread: dict[int, TensorValue] = {}
        self._path: list[tuple[int, int]] = []
        self._branches: dict[int, tuple[LiveRange, LiveRange]] = {}
        # For each open sequence of bindings, the tensors that branches of it touch and before which
        # CUDA graphs may launch the kernels that follow. TVM joins the blocks of a sequence.
        self._behind_branches: list[dict[AllocatedTensor, None]] = []
        self._inputs: set[int] = set()  # Handles of the parameters that no graph captures
        self._bindings: list[str] = []
        self._handles: list[int] = []
        self._tensors: list[AllocatedTensor] = []
        self._constants: dict[int, Weight] = {}  # By handle of the data, in the order first met
        self._parameters = {str(param.name) for param in self._func.params}
        self._inner: list[LeftToRuntime] = []
        self._unlowered: list[LeftToRuntime] = []
        self._callee: Callable[[Any], tuple[Callee, str]] = cache(partial(classify, mod))
        self._calls: set[str] = set()
        self._hands_on: set[str] = set()
        self._calls_unknown = False
        self._allocates = False
        self._has_closures = False

    def read(self, alignment: int, offsets_in_kernels: bool) -> RelaxMemory:
        func = self._func
        inputs = func.attrs.get(NUM_INPUT) if func.attrs else None
        # There may be fewer parameters than inputs: ``BindParams`` leaves the attribute as it is.
        count = len(func.params) if inputs is None else max(int(inputs), 0)
        self._inputs = {param.__chandle__() for param in func.params[:count]}
        parameters = [
            weight
            for param in func.params[count:]
            for weight in weights_within(str(param.name), param.ty, self._sizes)
        ]
        self._values = {param.__chandle__(): NO_TENSORS for param in func.params}
        self._leave(self._sequence(func.body), RETURNED)
        for tensor in tuple_of(tuple(self._unread.values())).tensors:
            tensor.is_kept = True
        empty = Problem(
            (), MemoryScope(SCOPE, alignment=alignment), name=f"function {self._name!r}"
        )
        end, apart = len(self._bindings), self._keeps_storages
        attribute = func.attrs.get(PLANS_RESULTS) if func.attrs else None
        plans_results = bool(getattr(attribute, "value", attribute))
        groups = group_tensors(
            self._tensors, self._branches, end, known_at_entry(func), empty, apart, plans_results
        )
        placed = [tensor for tensor in self._tensors if tensor.buffer]
        planned = (t.size for t in placed if t.size and (plans_results or not t.left))
        bounds = {b.variable.__chandle__(): b for size in planned for b in size.bounds}
        uses = None
        if offsets_in_kernels:
            uses = kernel_uses(self._mod, self._given, self._tensors, alignment)
        left = [weight for weight in parameters if isinstance(weight, LeftToRuntime)]
        left += [LeftToRuntime(t.name, t.left) for t in self._tensors if t.left]
        weights = (weight for weight in parameters if isinstance(weight, Weight))
        return RelaxMemory(
            name=self._name,
            mod=self._mod,
            func=func,
            groups=groups,
            left=(*left, *self._inner, *self._unlowered),
            weights=(*weights, *self._constants.values()),
            bounds=tuple(bounds.values()),
            variables=self._sizes.variables,
            bindings=tuple(self._bindings),
            handles=tuple(self._handles),
            calls=tuple(sorted(self._calls)),
            hands_on=tuple(sorted(self._hands_on)),
            calls_unknown=self._calls_unknown,
            allocates=self._allocates,
            allocations=len(self._tensors) + len(self._inner),
            unlowered=tuple(self._unlowered),
            keeps_storages=self._keeps_storages,
            buffer_of={one.variable.__chandle__(): one.buffer for one in placed},
            kernel_arguments=uses,
            branches=self._branches,
            has_all_allocations=all(t.buffer or t.left == NO_BYTES for t in self._tensors)
            and not (self._has_closures or self._unlowered or self._calls or self._allocates),
            may_be_kept=next((f"{t.name!r} is {t.left}" for t in self._tensors if _is_lent(t)), ""),
            plans_results=plans_results,
            transforms_weights=count == 0 and inputs is not None and len(func.params) > 0,
        )

    # Bindings

    def _sequence(self, expr: Any) -> TensorValue:
        if not isinstance(expr, rx.SeqExpr):
            return self._value(expr)
        self._behind_branches.append({})
        for block in expr.blocks:
            for binding in items(block.bindings):
                self._bind(binding)
        self._behind_branches.pop()
        return self._value(expr.body)

    def _bind(self, binding: Any) -> None:
        variable, value = binding.var, binding.value
        self._bindings.append(str(variable.name))
        self._handles.append(variable.__chandle__())
        if isinstance(value, rx.Function):
            self._values[variable.__chandle__()] = NO_TENSORS  # It may call itself.
            self._local_function(value)
        elif isinstance(value, rx.Call) and isinstance(binding, rx.VarBinding):
            self._values[variable.__chandle__()] = self._call(value, variable)
            self._launch(value)
        else:
            self._values[variable.__chandle__()] = self._value(value)
            if isinstance(value, rx.Tuple):
                self._unread[variable.__chandle__()] = self._variable(variable)
            if isinstance(binding, rx.MatchCast):
                self._uncaptured(self._variable(variable), "its type is stated")

    def _launch(self, call: Any) -> None:
        """Keep what earlier branches touched, unless a call ends the region of a CUDA graph."""
        touched = self._behind_branches[-1]
        if operator_name(call.op) == ALLOC_TENSOR:
            return
        if any(map(self._is_uncaptured, variables_in(call.args))):
            touched.clear()
        for tensor in touched:
            tensor.launched_at.append(len(self._bindings) - 1)

    def _is_uncaptured(self, variable: Any) -> bool:
        """Return whether `RewriteCUDAGraph` surely captures no kernel that is given a variable."""
        return variable.__chandle__() in self._inputs or any(
            tensor.left is not None or tensor.constant_bytes is None
            for tensor in self._variable(variable).tensors
        )

    # Expressions

    def _value(self, expr: Any) -> TensorValue:
        """Return what an expression may refer to."""
        if isinstance(expr, rx.Var):
            self._unread.pop(expr.__chandle__(), None)
            return self._variable(expr)
        if isinstance(expr, tir.GlobalVar):
            self._hand_on(expr)
        elif isinstance(expr, rx.Tuple):
            return tuple_of([self._value(field) for field in expr.fields])
        elif isinstance(expr, rx.TupleGetItem):
            given = expr.tuple_value
            is_named = isinstance(given, rx.Var)
            whole = self._variable(given) if is_named else self._value(given)
            return whole if whole.fields is None else whole.fields[int(expr.index)]
        elif isinstance(expr, rx.Call):
            return self._call(expr, None)
        elif isinstance(expr, rx.Constant):
            self._note_constant(expr)
        elif isinstance(expr, rx.If):
            return self._if(expr)
        elif isinstance(expr, rx.SeqExpr):
            return self._sequence(expr)
        elif isinstance(expr, rx.Function):
            self._local_function(expr)
        # All others have no tensor in them: shapes, numbers, strings, names of functions.
        return NO_TENSORS

    def _variable(self, variable: Any) -> TensorValue:
        handle = variable.__chandle__()
        if handle not in self._values and not isinstance(variable.ty, tir.PrimType):
            name = str(variable.name)
            raise ValueError(
                f"{self._here()}: uses {name!r}, which is not defined on the way to it"
            )
        return self._values.get(handle, NO_TENSORS)

    def _here(self) -> str:
        return f"binding {self._bindings[-1]!r}" if self._bindings else "its body"

    def _if(self, expr: Any) -> TensorValue:
        condition = self._value(expr.cond)
        self._touch(condition)
        condition.read_from_start()
        self._uncaptured(condition, "it is a condition")
        position = len(self._bindings) - 1
        results, sides = [], []
        for taken, branch in enumerate((expr.true_branch, expr.false_branch)):
            outside, start = dict(self._values), len(self._bindings)
            self._path.append((position, taken))
            results.append(self._sequence(branch))
            self._uncaptured(results[-1], "it is the value of a branch")
            # Its readers read the other branch's value too, wherever that is.
            results[-1].read_from_start()
            self._path.pop()
            sides.append((start, len(self._bindings)))
            self._values = outside
        self._branches[position] = sides[0], sides[1]
        return either(*results)

    def _local_function(self, function: Any) -> None:
        """Leave alone what a function within the function captures and allocates."""
        self._has_closures = True
        for variable in rx.free_vars(function):
            if not isinstance(variable.ty, tir.PrimType):
                self._leave(self._variable(variable), f"captured by {self._here()}")

        for node in nodes_in(function, rx.Binding, rx.Constant, tir.GlobalVar):
            if isinstance(node, rx.Constant):
                self._note_constant(node)
            elif isinstance(node, tir.GlobalVar):
                self._hand_on(node)
            elif isinstance(node.value, rx.Call):
                self._note_inner(node)

    def _note_inner(self, binding: Any) -> None:
        callee, what = self._callee(binding.value.op)
        if callee is Callee.ALLOCATES:
            reason = f"allocated within the function that {self._here()} makes"
            self._inner.append(LeftToRuntime(str(binding.var.name), reason))
        elif callee is Callee.HIGH_LEVEL:
            self._note_unlowered(str(binding.var.name), what)

    def _note_constant(self, constant: rx.Constant) -> None:
        """Count a constant once, unless it is no tensor."""
        data, ty = constant.value, constant.ty
        if isinstance(data, rx.Tensor) and data.__chandle__() not in self._constants:
            size = self._sizes.constant(ty.shape.values, ty.dtype.dtype)
            name = unique_name(f"constant_{len(self._constants)}", self._parameters, "_")
            self._constants[data.__chandle__()] = Weight(name, size, data.__chandle__())

    # Calls

    def _call(self, call: Any, variable: Any) -> TensorValue:
        op = call.op
        callee, what = self._callee(op)
        if callee is Callee.HIGH_LEVEL:
            self._note_unlowered(self._bindings[-1] if self._bindings else "the result", what)
        if callee is Callee.ALLOCATES:
            return self._allocate(call, variable)
        if callee is Callee.PLANNED:
            self._allocates = True
            return NO_TENSORS
        if isinstance(op, rx.Var):
            self._value(op)
        arguments = items(call.args)
        if what == CALL_TIR_DYN:
            arguments = items(arguments[1].fields)
        values = [self._value(argument) for argument in arguments]
        if callee is Callee.ALIASES:
            if (operator_name(op) or str(op.global_symbol)) not in RESHAPES:
                values[0].read_from_start()
            return values[0] if values[0].fields is None else TensorValue(values[0].tensors)
        if callee is Callee.READS or self._is_destination_passing(call, variable, values):
            self._given.append((op, variable, [value.tensors for value in values]))
            for value in values:
                self._touch(value)
            symbol = str(op.global_symbol) if isinstance(op, rx.ExternFunc) else ""
            if symbol in RETURNED_ARGUMENTS:
                returned = [values[number] for number in RETURNED_ARGUMENTS[symbol]]
                for value in returned:
                    value.read_from_start()
                return tuple_of(returned)
        elif callee is not Callee.FREES:
            if callee is Callee.CALLS:
                self._calls.add(str(op.name_hint))
            else:
                self._calls_unknown = True
            for value in values:
                self._touch(value)
                self._leave(value, f"{_PASSED}{what} by {self._here()}")
        return NO_TENSORS

    def _note_unlowered(self, binding: str, what: str) -> None:
        """Note that memory for the result of an operator is not allocated yet."""
        self._unlowered.append(LeftToRuntime(binding, f"{what} has yet to be lowered"))

    def _is_destination_passing(self, call: Any, variable: Any, values: list[TensorValue]) -> bool:
        """Return whether a packed call is one that `CallTIRRewrite` makes of ``R.call_dps_packed``.

        The call is not said to return anything, its result is not used, and its last argument is a
        new tensor, which the function writes from the others. It keeps nothing.
        """
        if not isinstance(call.op, rx.ExternFunc) or len(call.ty_args) or not values:
            return False
        if variable is None or variable.__chandle__() in self._used:
            return False  # A call that no variable is bound to stands within what uses its result.
        last = values[-1].tensors
        return len(last) == 1 and not last[0].touched

    @cached_property
    def _used(self) -> set[int]:
        """The handles of all that something in the function reads."""
        used = set[int]()
        rx.post_order_visit(self._func, lambda expr: used.add(expr.__chandle__()))
        return used

    def _hand_on(self, function: tir.GlobalVar) -> None:
        """Note that a function is used as a value: something else may call it."""
        if not isinstance(self._mod.functions.get(function), PrimFunc):
            self._calls.add(str(function.name_hint))
            self._hands_on.add(str(function.name_hint))

    # Tensors

    def _allocate(self, call: Any, variable: Any) -> TensorValue:
        position = len(self._bindings) - 1
        tensor = AllocatedTensor(self._bindings[-1], variable, tuple(self._path), position)
        fill_in(tensor, call, self._mod, self._sizes, self._host)
        self._tensors.append(tensor)
        return TensorValue((tensor,))

    def _touch(self, value: TensorValue) -> None:
        for tensor in value.tensors:
            tensor.touched = True
            tensor.touched_at.append(len(self._bindings) - 1)
            for touched in self._behind_branches[:-1] if self._keeps_storages else ():
                touched[tensor] = None

    def _uncaptured(self, value: TensorValue, reason: str) -> None:
        """Leave to the runtime what `RewriteCUDAGraph` does not see that something reads."""
        if self._keeps_storages:
            self._leave(value, f"{reason}, {UNCAPTURED}")

    def _leave(self, value: TensorValue, reason: str) -> None:
        for tensor in value.tensors:
            tensor.touched = True
            tensor.left = tensor.left or reason


def _is_lent(tensor: AllocatedTensor) -> bool:
    """Return whether something other than the caller may keep a tensor."""
    return tensor.left is not None and tensor.left.startswith(_PASSED)
