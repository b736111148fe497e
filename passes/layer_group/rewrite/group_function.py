# SPDX-License-Identifier: Apache-2.0
"""A group of layers as one kernel: loops over its slices, with what each time step does in them.

The kernel reads and writes tensors in global memory, and works in local memory: explicit loads,
layers, explicit stores. The slices overlap as the plan's time steps say, in three stages: while one
slice is computed, loads of the next and stores of the one before happen in the same turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import PrimType, Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import (
    EQ,
    BufferLoad,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    PrimFunc,
    SeqStmt,
    floormod,
)

from passes.layer_group.analysis.kernel_calls import KernelCall
from passes.layer_group.planning.network import Layer
from passes.layer_group.planning.planned_group import PlannedGroup
from passes.layer_group.planning.slicing import CHANNELS, TensorSlices
from passes.layer_group.planning.streams import Stream
from passes.layer_group.planning.time_steps import LOAD, Row, Transfer
from passes.layer_group.rewrite.kernel_slices import (
    AxisPart,
    Layout,
    Parts,
    buffer_parts,
    made_parts,
    nest,
    stage_loops,
)
from passes.layer_group.rewrite.local_buffers import LocalBuffer, LocalMemory
from passes.layer_group.rewrite.slice_values import INDEX, SliceValues, number

_OPAQUE = 8
"""TVM's ``kOpaque``: operator fusion leaves a kernel of this pattern alone."""


@dataclass(frozen=True, eq=False)
class GroupFunction:
    """A group's kernel."""

    function: PrimFunc  # In destination-passing style
    # Names of the tensors that its parameters are.
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def group_function(
    planned: PlannedGroup, calls: Mapping[str, KernelCall], lanes: int, form: str
) -> GroupFunction:
    """Write the kernel of a group.

    Each buffer has its address in a lane, in bytes, where `form` is ``address``; all of them are
    views of one allocation, which a CPU runs, where it is ``arena``.

    Raises ValueError when a layer needs more working memory than was planned for it.
    """
    return _Writer(planned, calls, lanes, form).write()


class _Writer:
    def __init__(
        self, planned: PlannedGroup, calls: Mapping[str, KernelCall], lanes: int, form: str
    ) -> None:
        self.planned, self.cut, self.group = planned, planned.cut, planned.group
        self.calls = {
            layer.name: calls[layer.name].in_columns if self.cut.w > 1 else calls[layer.name]
            for layer in planned.group.layers
        }
        self.memory = LocalMemory(planned, lanes, form)
        self.core = Var("core", PrimType(INDEX))
        uses = self._uses()
        # Weights that are loaded in another order than they lie in: the layer that said which.
        self.layouts = {
            layer.output: (layer.inputs[0], Layout.of(calls[layer.name]))
            for layer in self.group.index.layouts(self.group.loaded)
        }
        given = {
            **uses,
            **{name: [call.source] for name, (_, call) in self.layouts.items()},
        }
        self.outside = {
            name: tirx.decl_buffer(
                given[name][0].ty.shape,
                _dtype(given[name][0]),
                f"{'in' if at < len(self.group.loaded) else 'out'}{at}",
                elem_offset=_offset(given[name]),
                layout=None,
            )
            for at, name in enumerate((*self.group.loaded, *self.group.outputs))
        }
        self.local = {
            name: self.memory.tensor(name, _dtype(uses[name][0])) for name in self.group.names
        }

    def _uses(self) -> dict[str, list[Var]]:
        """Return the parameters of kernels that each tensor is."""
        uses: dict[str, list[Var]] = {}
        for layer in self.group.layers:
            call = self.calls[layer.name]
            pairs = [*zip(layer.inputs, call.inputs, strict=True), (layer.output, call.parameter)]
            for name, parameter in pairs:
                uses.setdefault(name, []).append(call.reads.kernel.buffers[parameter])
        return uses

    def write(self) -> GroupFunction:
        turn = Var("turn", PrimType(INDEX))
        pipelined = self.planned.steps.pipelined
        turns = self.cut.turns + (2 if pipelined else 0)
        work = [
            statement
            for row in self.planned.steps.rows
            for statement in self._row(row, turn if turns > 1 else number(0), turns)
        ]
        body: Any = SeqStmt(work) if len(work) > 1 else work[0]
        if turns > 1:
            body = For(turn, number(0), number(turns), ForKind.SERIAL, body)
        if self.cut.cores > 1:
            # Each core has a memory of its own, and needs nothing of another.
            body = For(
                self.core,
                number(0),
                number(self.cut.cores),
                ForKind.SERIAL,
                body,
                annotations={"cores": self.cut.cores},
            )
        names = (*self.group.loaded, *self.group.outputs)
        # Passes of Relax look into a kernel's root block.
        root = SBlock([], [], [], "root", SeqStmt([*self.memory.declarations, body]))
        function = PrimFunc([self.outside[name] for name in names], SBlockRealize([], True, root))
        for key, value in (("tirx.noalias", True), ("s_tir", True), ("op_pattern", _OPAQUE)):
            function = function.with_attr(key, value)
        inputs = tuple(self.layouts.get(name, (name,))[0] for name in self.group.loaded)
        return GroupFunction(function, inputs, self.group.outputs)

    def _row(self, row: Row, turn: Any, turns: int) -> list[Any]:
        """Return what one time step does: stores, then its layer, then loads.

        The plan lets no two of them touch the same bytes, so any order will do.
        """
        work: list[Any] = []
        stores = [t for t in row.transfers if t.kind != LOAD]
        loads = [t for t in row.transfers if t.kind == LOAD]
        for transfer in stores:
            work += self._guarded(turn, turns, transfer.stage, self._transfer, transfer)
        if row.layer is not None:
            work += self._guarded(turn, turns, 1, self._compute, self.group.layers[row.layer])
        for transfer in loads:
            work += self._guarded(turn, turns, transfer.stage, self._transfer, transfer)
        return work

    def _guarded(self, turn: Any, turns: int, stage: int, write: Any, what: Any) -> list[Any]:
        """Let something happen in the turns in which its stage has a slice to work on."""
        if not self.planned.steps.pipelined:
            stage = 0
        at = turn if stage == 0 else turn - number(stage)
        if self.cut.cores > 1:
            at = self.core * number(self.cut.turns) + at
        slices = SliceValues(self.cut, at)
        statement = write(what, slices)
        if slices.bindings:
            statement = SeqStmt([*slices.bindings, statement])
        first, last = stage, stage + self.cut.turns - 1
        conditions = [
            condition
            for condition, needed in (
                (turn >= number(first), first > 0),
                (turn <= number(last), last < turns - 1),
            )
            if needed
        ]
        return [_where(conditions, statement)]

    # ---------------------------------------------------------------------------- transfers

    def _transfer(self, transfer: Transfer, slices: SliceValues) -> Any:
        name = transfer.tensor
        local, outside = self.local[name], self.outside[name]
        held = self.planned.slices.tensors[name]
        if transfer.kind == LOAD:
            loops, at = _loops(made_parts(held), slices)
            copy = BufferStore(local.buffer, self._given(name, at), local.indices(at, slices))
            return self._once(held, nest(loops, copy), slices)
        stored = self.planned.slices.stored[name]
        loops, at = _loops(made_parts(stored), slices)
        copy = BufferStore(outside, BufferLoad(local.buffer, local.indices(at, slices)), at)
        return self._once(stored, nest(loops, copy), slices)

    def _given(self, name: str, at: Sequence[Any]) -> Any:
        """Return an element of a tensor from global memory."""
        if name in self.layouts:
            at = self.layouts[name][1].laid_out(at)
        return BufferLoad(self.outside[name], at)

    def _once(self, tensor: TensorSlices, statement: Any, slices: SliceValues) -> Any:
        """Leave out what an earlier slice has made, because it is kept whole along a cut."""
        conditions = [
            EQ(
                slices.index[letter]
                if self.cut.run(letter) == self.cut.count(letter)
                else floormod(slices.index[letter], number(self.cut.run(letter))),
                number(0),
            )
            for letter in tensor.keep
            if letter not in tensor.letters and self.cut.run(letter) > 1
        ]
        return _where(conditions, statement)

    # ------------------------------------------------------------------------------- layers

    def _compute(self, layer: Layer, slices: SliceValues) -> Any:
        made = self.planned.slices.tensors[layer.output]
        stream = self.planned.slices.streams.get(layer.name)
        if stream is None:
            return self._once(made, self._part(layer, slices), slices)
        # The weights of a part are loaded in the turn before the part is computed.
        turn, count = Var("part", PrimType(INDEX)), len(stream.ranges)
        loads = [self._load_part(name, axis, stream, turn) for name, axis in stream.weights]
        ahead = int(bool(loads))
        inner = SliceValues(self.cut, slices.number, turn - number(1) if ahead else turn)
        statement = self._part(layer, inner)  # It adds to the bindings.
        computed = [*inner.bindings, statement]
        body = _in_order(computed)
        if loads:
            load = _where([turn < number(count)], _in_order(loads))
            body = SeqStmt([load, _where([turn >= number(1)], body)])
        loop = For(turn, number(0), number(count + ahead), ForKind.SERIAL, body)
        return self._once(made, loop, slices)

    def _load_part(self, name: str, axis: int, stream: Stream, part: Any) -> Any:
        """Load what one part of a layer's channels needs of a weight."""
        local = self.local[name]
        slices = SliceValues(self.cut, number(0), part)
        parts = [
            AxisPart(stream.ranges, CHANNELS) if at == axis else AxisPart(((0, extent),))
            for at, extent in enumerate(self.group.tensor(name).shape)
        ]
        loops, at = _loops(parts, slices)
        copy = BufferStore(local.buffer, self._given(name, at), local.indices(at, slices))
        statement = nest(loops, copy)
        return _in_order([*slices.bindings, statement])

    def _part(self, layer: Layer, slices: SliceValues) -> Any:
        """Return the loops of a layer for a slice, or for a part of its channels."""
        call, made = self.calls[layer.name], self.planned.slices.in_parts(layer)
        if layer.name in self.planned.slices.streams:
            call = call.in_parts
        kernel = call.reads.kernel
        parts = buffer_parts(made, lambda box: call.reads.made_for(call.parameter, box))
        # What lies in the result's place is needed where the result is made, and nowhere else.
        in_place = (buffer for buffer, home in call.memory.items() if home == call.parameter)
        parts |= dict.fromkeys(in_place, made_parts(made))
        buffers = self._buffers(layer, call, made)
        work = [
            stage_loops(stage, parts[_written(stage.writes, parts)], buffers, call, slices)
            for stage in (kernel.stages[i] for i in kernel.stages_for(call.parameter))
        ]
        computed = _in_order(work)
        filled = [
            part.bounds(slices)[1] > number(0)
            for part in parts[call.parameter]
            if any(begin >= end for begin, end in part.ranges)
        ]
        return _where(filled, computed)

    def _buffers(
        self, layer: Layer, call: KernelCall, made: TensorSlices
    ) -> dict[int, LocalBuffer]:
        """Return where each buffer of a layer's kernel lies in local memory."""
        buffers = {p: self.local[n] for p, n in zip(call.inputs, layer.inputs, strict=True)}
        buffers[call.parameter] = self.local[layer.output]
        kernel = call.reads.kernel
        working = buffer_parts(made, call.working_boxes)
        memory: dict[int, Var] = {}
        if working:
            memory = self.memory.working(
                layer.name,
                {
                    buffer: (tuple(part.extent for part in axes), _dtype(kernel.buffers[buffer]))
                    for buffer, axes in working.items()
                },
            )
        for buffer, home in call.memory.items():
            if home != call.parameter:
                begins = tuple(part.begins for part in working[home])
                place = LocalBuffer(memory[home], begins, (False,) * len(begins))
            else:
                place = buffers[home]
            buffers[buffer] = self.memory.as_type(place, _dtype(kernel.buffers[buffer]))
        return buffers


def _dtype(buffer: Var) -> str:
    """Return the type of a buffer's elements."""
    return str(buffer.ty.dtype.dtype)


def _offset(parameters: Sequence[Var]) -> Any:
    """Return where in its memory a tensor begins, in elements, as all that take it have it.

    That is a variable if it is one for all of them: then the tensor may be a view.
    """
    offsets = [parameter.ty.elem_offset for parameter in parameters]
    if all(isinstance(offset, Var) for offset in offsets):
        return Var("offset", offsets[0].ty)
    return next((offset for offset in offsets if not isinstance(offset, Var)), None)


def _where(conditions: Sequence[Any], statement: Any) -> Any:
    """Return a statement that runs where all conditions hold."""
    for condition in reversed(conditions):
        statement = IfThenElse(condition, statement, None)
    return statement


def _in_order(statements: Sequence[Any]) -> Any:
    return SeqStmt(statements) if len(statements) > 1 else statements[0]


def _written(writes: Sequence[int], parts: Mapping[int, Parts]) -> int:
    """Return a buffer that a stage writes and that is needed."""
    return next(buffer for buffer in writes if buffer in parts)


def _loops(parts: Sequence[AxisPart], slices: SliceValues) -> tuple[list[Any], list[Any]]:
    """Return loops over a part of a tensor, and the indices in the tensor."""
    loops = [
        (Var(f"i{axis}", PrimType(INDEX)), *part.bounds(slices)) for axis, part in enumerate(parts)
    ]
    return loops, [loop for loop, _, _ in loops]
