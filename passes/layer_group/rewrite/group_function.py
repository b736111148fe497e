# SPDX-License-Identifier: Apache-2.0
"""A group of layers as one kernel: a loop over its slices, with what each time step does in it.

In a turn of the loop one slice is computed, while the next one is loaded and the one before stored,
as the time steps say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

from passes.ir import PrimFunc, element_type, tir, with_body
from passes.ir.storage_entries import ElementType
from passes.layer_group.analysis.kernel_calls import KernelCall
from passes.layer_group.analysis.stages import Stage
from passes.layer_group.planning.cut import CHANNELS
from passes.layer_group.planning.loops import PartLoop, Parts
from passes.layer_group.planning.network import Layer
from passes.layer_group.planning.planned_group import PlannedGroup
from passes.layer_group.planning.slicing import TensorSlices, region_needed
from passes.layer_group.planning.time_steps import LOAD, STORE, Row, Transfer
from passes.layer_group.rewrite.kernel_slices import (
    LayerPart,
    laid_out,
    loops_over,
    nest,
)
from passes.layer_group.rewrite.local_buffers import (
    LaneBuffers,
    LocalBuffer,
    check_covers,
)
from passes.layer_group.rewrite.loop_functions import OPAQUE, called
from passes.layer_group.rewrite.slice_values import (
    INDEX,
    SliceValues,
    Write,
    in_order,
    in_turns,
    number,
    where,
)
from passes.prim_func import write_arenas

GroupKernel = tuple[PrimFunc, Mapping[tir.GlobalVar, PrimFunc]]
"""A kernel in destination-passing style, and the functions that it calls, by their variables."""


def group_kernel(
    planned: PlannedGroup, calls: Mapping[str, KernelCall], lanes: int, form: str
) -> GroupKernel:
    """Write the kernel of a group; its parameters are the tensors that it loads, then its results.

    Each buffer has its address in a lane, in bytes, where `form` is ``address``. Where it is
    ``arena``, all of them are in one allocation, and layers are functions: a CPU runs that.

    Raises ValueError when a slice reads or stores what is not in local memory then, or for numbers
    beyond int32.
    """
    return _Writer(planned, calls, lanes, form).write()


class _Writer:
    def __init__(
        self, planned: PlannedGroup, calls: Mapping[str, KernelCall], lanes: int, form: str
    ) -> None:
        self.planned, self.cut, self.group = planned, planned.cut, planned.group
        self.calls = calls
        self.memory = LaneBuffers(planned, lanes)
        # A CPU calls functions of loops in one arena, and a chip runs the loops.
        self.calls_loops = form == "arena"
        self.functions: dict[tir.GlobalVar, PrimFunc] = {}
        self.core = tir.Var("core", tir.PrimType(INDEX))
        # By layer, where each buffer of its kernel lies; the same for all loops that it has.
        self.buffers: dict[str, dict[int, LocalBuffer]] = {}
        uses = self._uses()
        # Weights that are loaded in another order than they lie in: the layer that said which.
        self.layouts = {
            layer.output: calls[layer.name] for layer in self.group.index.layouts(self.group.loaded)
        }
        given = uses | {
            name: [call.kernel.buffers[call.inputs[0]]] for name, call in self.layouts.items()
        }
        self.parameters = {
            name: tir.new_buffer(
                given[name][0].ty.shape,
                _element(given[name][0]).scalar,
                f"{'in' if at < len(self.group.loaded) else 'out'}{at}",
                elem_offset=_offset(given[name]),
            )
            for at, name in enumerate((*self.group.loaded, *self.group.outputs))
        }
        self.local = {
            name: self.memory.tensor(name, _element(uses[name][0])) for name in self.group.names
        }

    def _uses(self) -> dict[str, list[tir.Var]]:
        """Return the parameters of the layers' kernels that each tensor is."""
        uses: dict[str, list[tir.Var]] = {}
        for layer in self.group.layers:
            call = self.calls[layer.name]
            pairs = [*zip(layer.inputs, call.inputs, strict=True), (layer.output, call.parameter)]
            for name, parameter in pairs:
                uses.setdefault(name, []).append(call.kernel.buffers[parameter])
        return uses

    def write(self) -> GroupKernel:
        body = self._body()
        body = tir.Sequence([*self.memory.declarations, body])
        function = PrimFunc([*self.parameters.values()], body)
        for key, value in (("tirx.noalias", True), ("s_tir", True), ("op_pattern", OPAQUE)):
            function = function.with_attr(key, value)
        if self.calls_loops:
            function = write_arenas(function, (self.memory.arena(),))
        # Passes of Relax look into a kernel's root block.
        root = tir.Block([], [], [], "root", function.body)
        return with_body(function, tir.BlockRealize([], True, root)), self.functions

    def _body(self) -> Any:
        """Return the loop over the slices of each core: the time steps of each, in stages."""
        turns, cores, core = self.cut.turns, self.cut.cores, self.core
        has_all = turns == self.cut.steps  # A core has all slices.
        last_stage = 2 if self.planned.steps.pipelined else 0
        work = [item for row in self.planned.steps.rows for item in self._row(row)]
        body = in_turns(
            "turn",
            turns,
            [(min(stage, last_stage), write) for stage, write in work],
            lambda at: SliceValues(self.cut, at if has_all else core * number(turns) + at),
        )
        if cores > 1:
            # Each core has a memory of its own, and needs nothing of another.
            serial, annotations = tir.LoopKind.SERIAL, {"cores": cores}
            body = tir.Loop(core, number(0), number(cores), serial, body, annotations=annotations)
        return body

    def _row(self, row: Row) -> list[tuple[int, Write]]:
        """Return what a time step does by stages, the last first; no two touch the same bytes."""
        work: list[tuple[int, Write]] = [(1, partial(self._compute, row))] if row.layers else []
        moved = (one for one in row.transfers if one.loop is None)
        work += [(one.stage, partial(self._transfer, one)) for one in moved]
        return sorted(work, key=itemgetter(0), reverse=True)

    # ---------------------------------------------------------------------------- transfers

    def _transfer(self, transfer: Transfer, slices: SliceValues) -> Any:
        # A tensor that is kept whole along a cut was moved with an earlier slice. Where cores share
        # channels, each of them has made what is stored here, and the first one stores it.
        is_shared = self.cut.shared == CHANNELS and transfer.kind == STORE
        first = [tir.EQ(self.core, number(0))] if is_shared else []
        return where(first, self._once(self._moved(transfer), self._copy(transfer, slices), slices))

    def _moved(self, transfer: Transfer) -> TensorSlices:
        slices = self.planned.slices
        return (slices.tensors if transfer.kind == LOAD else slices.stored)[transfer.tensor]

    def _copy(self, transfer: Transfer, slices: SliceValues) -> Any:
        """Return loops that load a part of a tensor, or store it."""
        name, parts = transfer.tensor, self._moved(transfer).makes
        local, outside = self.local[name], self.parameters[name]
        for axis, (held, part) in enumerate(zip(local.held, parts, strict=True)):
            check_covers(held, part, f"tensor {name!r} is moved, axis {axis}")
        loops, at = loops_over(parts, slices)
        place = local.indices(at, slices)
        if transfer.kind == LOAD:
            given = laid_out(self.layouts[name], at) if name in self.layouts else at
            copy = tir.Store(local.buffer, tir.new_load(outside, given), place)
        else:
            copy = tir.Store(outside, tir.new_load(local.buffer, place), at)
        return self._apart(nest(loops, copy), transfer.kind)

    def _apart(self, loops: Any, name: str) -> Any:
        """Return a call of loops that a CPU is to run; the loops themselves for a chip."""
        return called(loops, name, self.functions) if self.calls_loops else loops

    def _once(self, tensor: TensorSlices, statement: Any, slices: SliceValues) -> Any:
        """Return a statement that runs once along the cuts where its tensor is kept whole."""
        conditions = [
            tir.EQ(
                slices.index[letter]
                if self.cut.runs[letter] == self.cut.counts[letter]
                else tir.floormod(slices.index[letter], number(self.cut.runs[letter])),
                number(0),
            )
            for letter in tensor.keep
            if letter not in tensor.letters and self.cut.runs[letter] > 1
        ]
        return where(conditions, statement)

    # ------------------------------------------------------------------------------- layers

    def _compute(self, row: Row, slices: SliceValues) -> Any:
        """Return what the layers of a time step do for a slice."""
        layers = [self.group.layers[position] for position in row.layers]
        tensors = self.planned.slices.tensors
        loop, made = row.loop, tensors[layers[-1].output]
        if loop is None:
            return self._once(made, self._part(layers[-1], slices), slices)
        # Equal loops of a network share one function: it holds the loop over the parts, too.
        name = f"{layers[-1].operator}_parts"
        done = in_order([self._apart(self._loop(row, one, slices), name) for one in loop.loops])
        return self._once(made, done, slices) if len(layers) == 1 else done

    def _loop(self, row: Row, one: PartLoop, slices: SliceValues) -> Any:
        """Return the loop over parts of a time step, or its second one."""
        parts, then = one.parts, one.parts if one is not row.loop else None

        def computed(layer: Layer, at: SliceValues) -> Any:
            statement = self._part(layer, at, row.loop, then)
            if len(row.layers) == 1:
                return statement
            return self._once(self.planned.slices.tensors[layer.output], statement, at)

        def values(at: Any) -> SliceValues:
            part = at if parts.cores == 1 else self.core * number(parts.turns) + at
            return SliceValues(self.cut, slices.number, part)

        # A part is loaded in the turn before it is computed, and stored in the one after.
        ahead = int(bool(one.loads))
        moved = [(x.kind, partial(self._copy, x)) for x in row.transfers if x.loop is one]
        layers = [x for x in map(self.group.layers.__getitem__, row.layers) if x.name in one.layers]
        work: list[tuple[int, Write]] = [(ahead + 1, copy) for kind, copy in moved if kind == STORE]
        work += [(ahead, partial(computed, layer)) for layer in layers]
        work += [(0, copy) for kind, copy in moved if kind == LOAD]
        return in_turns("part", parts.turns, work, values)

    def _part(
        self,
        layer: Layer,
        slices: SliceValues,
        loop: PartLoop | None = None,
        then: Parts | None = None,
    ) -> Any:
        """Return what a layer does for a slice, or a part in a loop; with `then` after its sums."""
        call, made = self.calls[layer.name], self.planned.slices.tensors[layer.output]
        if layer.name not in self.buffers:
            self.buffers[layer.name] = self._buffers(layer, call, made)
        if then is not None:
            made = made.in_parts(then.axis, then.made)
        shapes = call.kernel.shapes
        regions = {n: region_needed(made.makes, axes, shapes[n]) for n, axes in call.made.items()}
        # Of a buffer in the result's place, a slice needs the result's own part alone.
        in_place = (buffer for buffer, home in call.memory.items() if home == call.parameter)
        regions |= dict.fromkeys(in_place, made.makes)
        filled = [
            slices.count(part) > number(0)
            for part in regions[call.parameter]
            if not part.spans.sizes.all()
        ]

        part = LayerPart(call, self.buffers[layer.name], regions)

        def computed(stages: Sequence[Stage], part: LayerPart = part) -> Any:
            for stage in stages:
                part.check(stage)
            loops = [part.loops(stage, slices) for stage in stages]
            return self._apart(in_order(loops), f"{layer.operator}_slice")

        if loop is None or not loop.sums(layer.name):
            return where(filled, computed(call.stages))
        summing, *rest = call.stages
        if then is not None:
            return where(filled, computed(rest))
        # The sum begins with the first part, and the stages that read it run with the last one.
        begin = replace(summing, inner=(), init=None, body=summing.init)
        added = replace(part, summed=loop.parts.made)
        at = slices.index[CHANNELS]
        statements = [
            where([tir.EQ(at, number(0))], computed([begin], added)),
            computed([replace(summing, init=None)], added),
        ]
        if rest and loop.then is None:
            statements.append(where([tir.EQ(at, number(loop.parts.count - 1))], computed(rest)))
        return where(filled, in_order(statements))

    def _buffers(
        self, layer: Layer, call: KernelCall, made: TensorSlices
    ) -> dict[int, LocalBuffer]:
        """Return where each buffer of a layer's kernel lies in local memory."""
        elements = {buffer: _element(call.kernel.buffers[buffer]) for buffer in call.memory}
        held = {n: region_needed(made.makes, x.maps, x.shape) for n, x in call.working.items()}
        places = self.memory.working(layer.name, held, elements)
        places[call.parameter] = self.local[layer.output]
        buffers = {p: self.local[n] for p, n in zip(call.inputs, layer.inputs, strict=True)}
        for buffer, home in call.memory.items():
            buffers[buffer] = self.memory.as_type(places[home], elements[buffer])
        return buffers


def _element(buffer: tir.Var) -> ElementType:
    return element_type(buffer.ty.dtype)


def _offset(parameters: Sequence[tir.Var]) -> Any:
    """Return where a tensor begins in its memory, in elements: a variable if it may be a view."""
    offsets = [parameter.ty.elem_offset for parameter in parameters]
    known = (offset for offset in offsets if not isinstance(offset, tir.Var))
    return next(known, tir.Var("offset", offsets[0].ty))
