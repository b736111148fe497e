# SPDX-License-Identifier: Apache-2.0
"""Tensors that are computed from weights alone, and modules that do not compute them in a call.

A weight is a parameter after the first ``num_input``. PyTorch's exporter writes a linear layer as a
product with its transposed weight; where weights are parameters, each call transposes them anew,
and the copies count as tensors between operators. Where they are constants TVM folds that away.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tvm import relax

from passes.ir import POSTORDER, IRModule, new_dtype, nodes_in, structural_map, tir, unique_name
from passes.ir.operators import legalization, operator_name
from passes.ir.relax_operators import CALL_TIR, UNFOLDED, VIEWS
from passes.relax import NUM_INPUT, element_bytes, functions_in_order, renamed, rx
from tvm_ext.tensor_names import names_from_modules, number_of_inputs

REMEDY = (
    "bind the weights, or build with relax_pipeline(..., lift_weights=True), by which they are "
    "computed once and stay in memory"
)
"""The remedy where tensors are computed from weights alone in each call."""


class WeightTensors(NamedTuple):
    """The tensors that a call of a function computes from its weights alone."""

    function: str
    tensors: int
    nbytes: int  # Of all of them

    def __str__(self) -> str:
        """Say it in a few words."""
        said = "tensor is" if self.tensors == 1 else "tensors are"
        return (
            f"function {self.function!r}: {self.tensors} {said} computed from weights alone in "
            f"each call, {self.nbytes:,} bytes"
        )


def as_built(mod: IRModule) -> IRModule:
    """Return a module as it would be built: weights are there, and so is what is made of them.

    A weight is a parameter after the first ``num_input`` of a Relax function. Bindings that depend
    on weights alone are taken out of the function, and their results are parameters in their place.
    The memory of a call is then the same as with the weights bound as constants, whose values need
    not be known: TVM's `FoldConstant` takes the same tensors out. The code that would compute those
    parameters is left out: the module is one to plan and to count. To build it, see
    `with_lifted_weights`.

    Left alone are functions that others of the module call, as the callers give them the weights as
    they are; those without inputs, which transform weights; and operators outside of dataflow
    blocks. The module itself comes back where there is nothing to take out; the input module is
    never changed.

    Parameters
    ----------
    mod : tvm.IRModule
        Before it is lowered; functions that are no Relax functions stay as they are.

    Returns
    -------
    tvm.IRModule
    """
    result = mod
    for variable, _ in _made_of_weights(mod):
        result = mod.clone() if result is mod else result
        named = renamed(mod[variable], names_from_modules(mod[variable]))
        result.update_func(variable, _without(named, list(_of_weights(named))))
    return mod if result is mod else rx.Normalize()(result)


def with_lifted_weights(mod: IRModule) -> IRModule:
    """Return a module in which functions of their own compute what depends on weights alone.

    TVM's `LiftTransformParams` takes it out of the functions that `as_built` changes. The function
    for ``main`` is ``main_transform_params``, which takes the weights as one tuple.
    """
    chosen = {one.function for one in weight_tensors(mod)}
    marked, inputs = mod.clone(), {}
    for variable, func in functions_in_order(mod):
        name = str(variable.name_hint)
        if name not in chosen and func.attrs and NUM_INPUT in func.attrs:
            inputs[name] = func.attrs[NUM_INPUT]  # Or the pass would take it, too.
            marked.update_func(variable, func.without_attr(NUM_INPUT))
    lifted = relax.transform.LiftTransformParams()(marked)
    for name, number in inputs.items():
        lifted[name] = lifted[name].with_attr(NUM_INPUT, number)
    return lifted


def weight_tensors(mod: IRModule) -> tuple[WeightTensors, ...]:
    """Return what calls of a module's Relax functions compute from weights alone, by function.

    Functions that compute nothing of this kind, or that `as_built` leaves alone, are left out.
    """
    found = []
    for variable, types in _made_of_weights(mod):
        nbytes = sum(map(_bytes_of, types))
        found.append(WeightTensors(str(variable.name_hint), len(types), nbytes))
    return tuple(found)


def _made_of_weights(mod: IRModule) -> list[tuple[tir.GlobalVar, list[Any]]]:
    """Return the types of the tensors that each function computes from weights alone, if any.

    Functions without inputs, or that others mention, are left out.
    """
    functions, found = functions_in_order(mod), []
    for variable, func in functions:
        has_weights = 0 < number_of_inputs(func) < len(func.params)
        if has_weights and isinstance(func.body, rx.SeqExpr):
            types = [b.var.ty for b in _of_weights(func) if _is_new_tensor(b.value)]
            found += [(variable, types)] if types else []
    bodies = (func.body for _, func in functions) if found else ()
    mentioned = {str(one.name_hint) for body in bodies for one in nodes_in(body, tir.GlobalVar)}
    return [(variable, types) for variable, types in found if variable.name_hint not in mentioned]


def _of_weights(func: rx.Function) -> Iterator[Any]:
    """Yield the bindings that depend on weights alone, by the rules of TVM's `FoldConstant`.

    That folds, within dataflow blocks, calls of kernels and of operators that become kernels, if
    they are of constant size and not among `UNFOLDED`. A weight taken out of a tuple is one, too.
    """
    weights = {one.__chandle__() for one in func.params[number_of_inputs(func) :]}
    known = set(weights)  # Also what is computed from constants.
    for block in func.body.blocks:
        for binding in block.bindings if isinstance(block, rx.DataflowBlock) else ():
            handle, value = binding.var.__chandle__(), binding.value
            read = {one.__chandle__() for one in rx.free_vars(value)}
            is_part = bool(read) and isinstance(value, rx.TupleGetItem)
            if read <= known and (is_part or (_is_folded(value) and _bytes_of(binding.var.ty))):
                known.add(handle)
                if read & weights:
                    weights.add(handle)
                    yield binding


def _without(func: rx.Function, bindings: Sequence[Any]) -> rx.Function:
    """Return a function in which the results of bindings are weights in place of what they read."""
    taken_out = {binding.var.__chandle__() for binding in bindings}
    blocks = []
    for block in func.body.blocks:
        kept = [one for one in block.bindings if one.var.__chandle__() not in taken_out]
        if kept:
            blocks.append(type(block)(kept))
    body = rx.SeqExpr(blocks, func.body.body)
    replaced = {one.__chandle__() for b in bindings for one in rx.free_vars(b.value)}
    read = {one.__chandle__() for one in rx.free_vars(body)}
    inputs = number_of_inputs(func)
    own = [
        one
        for at, one in enumerate(func.params)
        if at < inputs
        or one.__chandle__() in read
        or one.__chandle__() not in replaced
        or rx.definable_symbols_in_type(one.ty)  # Others may have sizes that only it gives.
    ]
    taken = {str(one.name) for one in own}
    weights = {  # By names of their own: TVM binds parameters by name.
        binding.var.__chandle__(): rx.Var(
            unique_name(str(binding.var.name), taken, "_"), binding.var.ty
        )
        for binding in bindings
        if binding.var.__chandle__() in read
    }

    def weight(variable: Any) -> Any:
        return weights.get(variable.__chandle__(), variable)

    body = structural_map(body, [(rx.DataflowVar, weight), (rx.Var, weight)], POSTORDER)
    params = [*own, *weights.values()]
    return rx.Function(params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


def _is_folded(value: Any) -> bool:
    """Return whether a value is a call that TVM folds where all tensors that it reads are known."""
    if not isinstance(value, rx.Call):
        return False
    name = operator_name(value.op)
    is_kernel = name == CALL_TIR or legalization(value.op) is not None
    return is_kernel and name not in UNFOLDED


def _is_new_tensor(value: Any) -> bool:
    return isinstance(value, rx.Call) and operator_name(value.op) not in VIEWS


def _bytes_of(type_: Any) -> int:
    """Return the bytes of a tensor of a constant size, or of a tuple of them; 0 of all else."""
    if isinstance(type_, rx.TupleType):
        fields = [_bytes_of(field) for field in type_.fields]
        return sum(fields) if all(fields) else 0
    shape = getattr(type_, "shape", None)
    if not isinstance(shape, rx.ShapeExpr):
        return 0
    sizes = [size.value if isinstance(size, tir.IntConstant) else 0 for size in shape.values]
    return math.prod(sizes) * element_bytes(new_dtype(str(type_.dtype)))
