# SPDX-License-Identifier: Apache-2.0
"""The networks in a Relax module: its blocks of kernel calls, as LayerGroup sees them.

Every binding of a block that calls something is a layer, and those that cannot be grouped say why:
so a path between two layers that leads through one of them is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from passes.ir import IRModule, first_line, tir
from passes.ir.operators import operator_name
from passes.ir.relax_operators import CALL_TIR, PREFIX
from passes.layer_group.analysis.kernel_calls import KernelCall, read_results
from passes.layer_group.analysis.layer_tensor_names import TensorNames, flat, tuple_uses
from passes.layer_group.analysis.letters import Reads, decide_letters, weight_roles
from passes.layer_group.analysis.read_kernel import Kernel, read_kernel
from passes.layer_group.analysis.stages import NOT_ANALYSED
from passes.layer_group.planning.cut import FIRST, LETTERS
from passes.layer_group.planning.network import Kind, Layer, Network, Tensor
from passes.layer_group.planning.spans import AxisMaps
from passes.relax import OpaqueValues, functions_in_order, rx

_Kernel = tuple[Kernel, Mapping[int, KernelCall]]
"""A kernel and what it reads for each of its results, by the number of the parameter."""

NOT_PURE = "its block is no dataflow block, and holds more than calls of kernels"
LAYOUT = "it lays out a weight for a layer that is left"
IN_PLACE = "its block writes a tensor in place"


@dataclass(frozen=True, eq=False)
class BlockNetwork:
    """One block of a Relax function."""

    function: tir.GlobalVar  # The function
    block: int  # The number of the block in the function's body
    network: Network  # Its layers, one for each tensor that a call makes, in the block's order
    # By the layer's name; without those that cannot be grouped.
    calls: Mapping[str, KernelCall]
    bindings: Mapping[str, int]  # The number of each layer's binding in the block, by its name
    values: Mapping[str, Any]  # The value of each tensor in the function, by its name
    opaque: tuple[int, ...]  # The numbers of bindings that keep their order: see `OpaqueValues`

    @property
    def key(self) -> tuple[str, int]:
        """The name of the function, and the number of the block."""
        return str(self.function.name_hint), self.block


def read_networks(mod: IRModule) -> tuple[BlockNetwork, ...]:
    """Return the networks of a module's Relax functions.

    Functions come by name, their blocks in order; blocks that call nothing are left out.
    """
    kernels: dict[int, _Kernel | str] = {}
    is_opaque = OpaqueValues(mod)
    found = []
    for variable, function in functions_in_order(mod):
        for number in range(len(function.body.blocks)):
            network = _BlockReader(mod, variable, number, kernels, is_opaque).read()
            if network is not None:
                found.append(network)
    return tuple(found)


class _BlockReader:
    def __init__(
        self,
        mod: IRModule,
        variable: tir.GlobalVar,
        number: int,
        kernels: dict[int, _Kernel | str],
        is_opaque: OpaqueValues,
    ) -> None:
        self.mod, self.variable, self.function, self.number = mod, variable, mod[variable], number
        self.block = self.function.body.blocks[number]
        self.kernels, self.is_opaque = kernels, is_opaque
        self.names = TensorNames()
        self.layers: list[Layer] = []
        # By the layer's name.
        self.calls: dict[str, KernelCall] = {}
        self.bindings: dict[str, int] = {}
        self.opaque: dict[int, tuple[str, ...]] = {}  # Their tensors, by number
        self.device: str | None = None
        self.taken_out, self.used_whole = tuple_uses(self.function, number)
        self.refused = self._why_not_at_all()

    def read(self) -> BlockNetwork | None:
        for param in self.function.params:
            self.names.new(param)
        for at, binding in enumerate(self.block.bindings):
            self._read_binding(at, binding)
        return self._network() if self.layers else None

    def _why_not_at_all(self) -> str:
        values = [binding.value for binding in self.block.bindings]
        if any(map(self.is_opaque.overwrite_arguments, values)):
            return IN_PLACE
        if isinstance(self.block, rx.DataflowBlock):
            return ""
        calls = [value for value in values if isinstance(value, (rx.If, tir.Call))]
        return "" if all(operator_of(call)[0] == CALL_TIR for call in calls) else NOT_PURE

    def _read_binding(self, at: int, binding: Any) -> None:
        var, value = binding.var, binding.value
        if isinstance(value, (tir.Var, rx.Constant, rx.Tuple, rx.TupleGetItem)):
            names = self.names.of_var[var.__chandle__()] = self.names.of(value)
            if isinstance(names, str) and isinstance(self.names.values[names], rx.TupleGetItem):
                self.names.values[names] = var
            return
        if isinstance(
            value, (rx.ShapeExpr, tir.IntConstant, tir.FloatConstant, tir.StringConstant)
        ):
            self.names.of_var[var.__chandle__()] = []
            return
        results = self.names.new(var)
        (operator, reason), first = operator_of(value), len(self.layers)
        is_opaque = self.is_opaque(value)
        behind = next(reversed(self.opaque.values()), ()) if is_opaque else ()
        if operator == CALL_TIR:
            self._read_kernel_call(at, binding, results, behind)
        else:
            if isinstance(value, tir.Call):
                read = [self.names.of(arg) for arg in value.args]
            else:
                free = rx.free_vars(value)
                read = [self.names.of(v) for v in free if v.__chandle__() in self.names.of_var]
            inputs = list(dict.fromkeys(flat(read)))
            for name in flat(results):
                self._add(at, operator, inputs, name, reason, behind)
        if is_opaque and len(self.layers) > first:
            self.opaque[at] = tuple(layer.output for layer in self.layers[first:])

    def _add(
        self,
        at: int,
        operator: str,
        inputs: Sequence[str],
        output: str,
        found: str | KernelCall,
        behind: tuple[str, ...],
    ) -> None:
        """Add the layer of a binding: a kernel's, or one that is left, and why."""
        name = f"{operator}:{output}"
        self.bindings[name] = at
        source = None if self.refused or isinstance(found, str) else found
        if source is None:
            ranks = (len(self.names.shapes[one] or ()) for one in inputs)
            maps: tuple[AxisMaps, ...] = tuple((None,) * rank for rank in ranks)
        else:
            inputs = [inputs[p] for p in source.inputs]
            maps, self.calls[name] = source.maps, source
        reason = self.refused or (found if isinstance(found, str) else "")
        layer = Layer(name, operator, tuple(inputs), output, maps, reason=reason, behind=behind)
        self.layers.append(layer)

    def _read_kernel_call(
        self, at: int, binding: Any, results: Any, behind: tuple[str, ...]
    ) -> None:
        call, key = binding.value, binding.var.__chandle__()
        operator, inputs = str(call.args[0].name_hint), flat(self.names.of(call.args[1]))
        made, kernel = flat(results), self._kernel(call.args[0])
        taken = [n for n in range(len(made)) if (key, n) in self.taken_out]
        for number in taken or range(len(made)):
            found: str | KernelCall
            if isinstance(kernel, str):
                found = kernel
            elif isinstance(results, list) and key in self.used_whole:
                found = "its results are used as one tuple"
            else:
                try:
                    found = self._describe(kernel, inputs, made, number)
                except NOT_ANALYSED as error:
                    found = _cannot_be_cut(error)
            self._add(at, operator, inputs, made[number], found, behind)

    def _kernel(self, callee: tir.GlobalVar) -> _Kernel | str:
        key = callee.__chandle__()
        if key not in self.kernels:
            try:
                kernel = read_kernel(self.mod[callee])
                self.kernels[key] = kernel, read_results(kernel)
            except NOT_ANALYSED as error:
                self.kernels[key] = _cannot_be_cut(error)
        return self.kernels[key]

    def _describe(
        self, read: _Kernel, inputs: Sequence[str], made: Sequence[str], number: int
    ) -> str | KernelCall:
        """Return what makes a result, or why it cannot be cut."""
        (kernel, outputs), parameter, output = read, len(inputs) + number, made[number]
        shapes, bits, devices = self.names.shapes, self.names.bits, self.names.devices
        if self.device is None:
            self.device = devices[output]
        if kernel.parameters != len(inputs) + len(made):
            return "its kernel has other parameters than the call has arguments"
        if any(
            (shapes[name], bits[name]) != (kernel.shapes[p], kernel.bits(p))
            for p, name in [*enumerate(inputs), (parameter, output)]
        ):
            return "its shapes are not known"
        if not kernel.shapes[parameter]:
            return "it makes a single number"
        if any(result < len(inputs) for result in kernel.results):
            return "its kernel writes what it is given"
        if kernel.reads_results(parameter):
            return "its kernel reads what it writes"
        if parameter not in outputs:
            return "its kernel does not write its result"
        if any(devices[name] != self.device for name in (*inputs, output)):
            return "its tensors are on other devices than those of the first layer"
        return outputs[parameter]

    def _network(self) -> BlockNetwork:
        weights, shapes = self._weights(), self.names.shapes
        letters = self._letters(weights)
        axes = {letter: self._cut_axes(letters, letter) for letter in LETTERS}
        known: dict[KernelCall, KernelCall] = {}  # Equal ones share what is found out about them.
        for number, layer in enumerate(self.layers):
            if layer.name in self.calls:
                source = self.calls[layer.name]
                source = source.cut_by({x: of[layer.output] for x, of in axes.items()})
                try:
                    self.layers[number] = known.setdefault(source, source).described(layer)
                    self.calls[layer.name] = known[source]
                except NOT_ANALYSED as error:
                    self.layers[number] = replace(layer, reason=_cannot_be_cut(error))
                    del self.calls[layer.name]
        outputs = self._outputs()
        layouts = {x.output for x in self.layers if self._lays_out(x, weights, outputs)}
        weights |= layouts
        roles = weight_roles(*self._reads(), weights)
        tensors = tuple(
            Tensor(
                name,
                shapes[name] or (),
                self.names.bits[name],
                letters[name],
                Kind.WEIGHT if name in weights else Kind.ACTIVATION,
                shapes[name] is not None,
                *roles.get(name, ()),
            )
            for name in dict.fromkeys(n for x in self.layers for n in (*x.inputs, x.output))
        )
        network = Network(
            tensors,
            tuple(x for x in self.layers if x.output not in layouts),
            outputs,
            str(self.variable.name_hint),
            tuple(replace(x, reason=LAYOUT) for x in self.layers if x.output in layouts),
        )
        parts = self.calls, self.bindings, self.names.values, tuple(self.opaque)
        return BlockNetwork(self.variable, self.number, network, *parts)

    def _lays_out(self, layer: Layer, weights: set[str], outputs: Sequence[str]) -> bool:
        """Return whether a call only moves a weight's elements, and one other call reads them."""
        readers = [other.name for other in self.layers if layer.output in other.inputs]
        return (
            layer.name in self.calls
            and weights.issuperset(layer.inputs)
            and layer.output not in outputs
            and self.calls[layer.name].layout is not None
            and len(readers) == 1
            and readers[0] in self.calls
        )

    def _outputs(self) -> tuple[str, ...]:
        """Return the tensors that something after the block, or the function's result, needs.

        A match_cast keeps its operand alive even if its result is unused.
        """
        here = self.block.bindings
        behind = self.function.body.blocks[self.number + 1 :]
        read = [self.function.body.body]
        read += [binding.value for block in behind for binding in block.bindings]
        read += [binding.value for binding in here if isinstance(binding, rx.MatchCast)]
        if isinstance(self.block, rx.DataflowBlock):
            read += [one.var for one in here if not isinstance(one.var, rx.DataflowVar)]
        variables = [var for expr in read for var in rx.free_vars(expr)]
        return tuple(dict.fromkeys(flat([*map(self.names.of, variables)])))

    def _weights(self) -> set[str]:
        """Return the names of the weights.

        They are the constants, and the parameters after those that the function's attribute
        ``num_input`` counts. Without the attribute, every parameter but the first is a weight if
        no axis of it follows the batch or the rows of a reader's result.
        """
        weights = set(self.names.constants)
        count = self.function.attrs.get("num_input")
        params = [flat(self.names.of(param)) for param in self.function.params]
        if count is not None:
            return weights.union(*params[int(count) :])
        behind = [name for names in params[1:] for name in names]
        cut = self._cut_axes(self._letters(weights.union(behind)), FIRST)
        return weights.union(name for name in behind if not cut.get(name))

    def _cut_axes(self, letters: Mapping[str, str], which: str) -> dict[str, set[int]]:
        """Return the axes of each tensor that a group may cut.

        They are the first axis of each of the letters in `which`, and the axes that follow such
        an axis of a reader's result: the letters of a layer's input and result need not agree.
        """
        found: dict[str, set[int]] = {}
        for layer in reversed(self.layers):
            first = (letters[layer.output].find(letter) for letter in which)
            own = found.setdefault(layer.output, set())
            own.update(axis for axis in first if axis >= 0)
            for name, axis_maps in zip(layer.inputs, layer.maps, strict=True):
                axes = (axis for axis, m in enumerate(axis_maps) if m is not None and m.axis in own)
                found.setdefault(name, set()).update(axes)
        return found

    def _reads(self) -> tuple[dict[str, tuple[int, ...]], list[Reads]]:
        """Return the shapes of tensors, and what each kernel call reads."""
        shapes = {name: shape or () for name, shape in self.names.shapes.items()}
        return shapes, [
            Reads(x.output, x.inputs, x.maps, self.calls[x.name].contractions)
            for x in self.layers
            if x.name in self.calls
        ]

    def _letters(self, weights: set[str]) -> dict[str, str]:
        return decide_letters(*self._reads(), weights)


def _cannot_be_cut(error: Exception) -> str:
    return f"its kernel cannot be cut: {first_line(error)}"


def operator_of(value: Any) -> tuple[str, str]:
    """Return the name of what a binding calls, and why it is no layer that can be cut."""
    if isinstance(value, rx.If):
        return "if", "it is a branch"
    if not isinstance(value, tir.Call):
        return type(value).__name__, "it is not a call"
    if operator_name(value.op):
        name = str(value.op.name)
        if name == CALL_TIR:
            return name, ""
        return name.removeprefix(PREFIX), "it is not a call of a kernel"
    if isinstance(value.op, tir.GlobalVar):
        return str(value.op.name_hint), "it calls another function"
    if isinstance(value.op, rx.ExternFunc):
        return str(value.op.global_symbol), "it is a packed function"
    return "call", "it calls what is not known here"
