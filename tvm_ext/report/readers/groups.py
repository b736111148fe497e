# SPDX-License-Identifier: Apache-2.0
"""Groups of `LayerGroup` in a network: local memory of a lane, beside its time steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from passes import layer_group
from passes.ir import IRModule, Sequential, Target
from passes.planning import Plan, Problem, solve
from target_hw.memory import target_label
from tvm_ext.lowering import DEFAULT_TARGET, as_module, has_relax, known_target
from tvm_ext.relax_passes import relax_stages
from tvm_ext.report.ask import Ask
from tvm_ext.report.memory_view import (
    BUILT,
    Axis,
    BufferNote,
    LeftAlone,
    MemoryView,
    PlannedProblem,
    Text,
    planned,
)
from tvm_ext.report.report import Finding
from tvm_ext.text import Table, Tabular, counted, format_bytes


@dataclass(frozen=True)
class LayerGroupSummary:
    """One group of layers that run together in local memory."""

    function: str
    """The Relax function that they are of."""
    layers: tuple[str, ...]
    """Names of its layers, ``operator:tensor``, in order."""
    operators: tuple[str, ...]
    """The operators of its layers."""
    results: tuple[str, ...]
    """Each layer's result, such as ``1x64x56x56 nchw, 16 bits``: extents, a letter for each axis
    (``n`` batch, ``c`` channels, across the lanes, ``h`` rows, ``w`` the rest), bits an element."""
    n_slices: int
    d_slices: int
    h_slices: int
    w_slices: int
    """The numbers of slices of the batch, depth, rows and columns of its outputs."""
    cores: int
    shared: str
    """The number of cores that share the work, and the letter of the shared axis; empty for one."""
    in_parts: int
    """The number of its layers that make their channels in parts, while weights are loaded."""
    halo: str
    """``keep`` if the rows that two slices need stay in local memory, ``recompute`` if they are
    made again or there are none, ``mixed`` if some stay."""
    lmem_peak: int
    lmem_capacity: int
    """Bytes a lane: what its plan takes, and what there is."""
    bank_conflicts: int
    """Time steps in which operands, or an operand and a transfer, share a bank of local memory."""
    moved: int
    """Bytes between global and local memory."""
    repeated_rows: int
    """Rows of tensors that are computed again."""
    cycles: int
    """By the cost model."""
    planned: layer_group.PlannedGroup = field(repr=False)
    """All that was decided: slices, time steps and addresses."""


class LeftLayer(NamedTuple):
    """A layer in no group, why, and what it makes, as in `LayerGroupSummary`."""

    layer: str
    reason: str
    result: str
    function: str = ""


_UNKNOWN = "a size known at run time only"


@dataclass(frozen=True, repr=False)
class LayerGroupReport(Tabular):
    """A network in groups; printed, it is one line."""

    groups: tuple[LayerGroupSummary, ...]
    """In the order in which they run."""
    left: tuple[LeftLayer, ...]
    """The layers in no group, each with its reason, in order."""
    moved_before: int
    moved_after: int
    """Bytes between global and local memory: if each layer loads its inputs and stores its output,
    and with the groups."""
    folded_before: int
    folded_after: int
    """Those of them that compute weights of weights alone, which a deployment does beforehand."""
    moved_least: int
    """Bytes if every input, weight and output moves once, or what the groups move if less."""
    makespan_before: int
    makespan_after: int
    """Cycles without groups and with them, by the cost model."""
    saved: str = field(repr=False)
    """The groups as the text of a file, which `LayerGroup` takes as its ``plan``."""

    def table(self, *, left: bool = True) -> Table:
        """Return a row for each group, with a line for each of its layers, and what is `left`."""
        notes = []
        if self.folded_before:
            folded = format_bytes(self.folded_before, self.folded_after)
            notes.append(
                "of what is moved, to lay out weights, which a deployment does once: "
                f"{folded} without/with groups"
            )
        if any(one.result == _UNKNOWN for one in self.left):
            notes.append(f"not counted: tensors of {_UNKNOWN}")
        if any(one.planned.local.bank_bytes for one in self.groups):
            steps = sum(len(one.planned.steps.rows) for one in self.groups)
            shared = sum(one.bank_conflicts for one in self.groups)
            notes.append(
                "places as built are spread over the banks of local memory: operands and transfers "
                f"share one in {shared:,} of {counted(steps, 'time step')}"
            )
        for lone in self.left if left else ():
            notes.append(f"{lone.layer} ({lone.result}) is left: {lone.reason}")
        lane = "".join(f" of {one.lmem_capacity:,}" for one in self.groups[:1])
        header = "group", "layer", "makes", "slices", "rows that two slices need"
        rows = [(*header, f"bytes a lane{lane}", "bytes moved", "rows made again")]
        for at, one in enumerate(self.groups):
            depth = (one.d_slices,) if one.d_slices > 1 else ()
            slices = "x".join(map(str, (one.n_slices, *depth, one.h_slices, one.w_slices)))
            slices += f" on {one.cores} cores along {one.shared}" if one.shared else ""
            layers, made = "\n".join(one.layers), "\n".join(one.results)
            numbers = f"{one.lmem_peak:,}", f"{one.moved:,}", f"{one.repeated_rows:,}"
            rows.append((str(at), layers, made, slices, one.halo, *numbers))
        return Table(repr(self).strip("<>"), rows, notes, left=range(5))

    def __str__(self) -> str:
        """Return the line that says what the groups save."""
        layers = sum(len(group.layers) for group in self.groups)
        return (
            f"<LayerGroupReport: {layers} layers in {counted(len(self.groups), 'group')}, "
            f"{len(self.left)} left; "
            f"{format_bytes(self.moved_before)} between global and local memory without "
            f"groups, {format_bytes(self.moved_after)} with, {format_bytes(self.moved_least)} at "
            f"least; {self.makespan_before:,} cycles without, {self.makespan_after:,} with>"
        )

    __repr__ = __str__


def layer_groups(
    mod: IRModule,
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    search: str = "dynamic_programming",
    halo: str = "cheapest",
    planner: str = "best",
    plan: str | Path | None = None,
    fuse: bool = True,
    progress: Callable[[int, int], object] = layer_group.silent,
) -> LayerGroupReport:
    """Say which layers of a network would run together in local memory, and what that saves.

    Of several Relax functions the numbers are added up.

    Parameters
    ----------
    mod : tvm.IRModule
        A Relax module; it stays as it is. Operators that are not lowered yet are, as
        `tvm_ext.relax_pipeline` lowers them.
    target : Target or str or mapping, optional
        The chip. By default the target that is current.
    search, halo, planner, plan
        As in `tvm_ext.transform.LayerGroup`.
    fuse : bool
        Whether operators that are lowered here are fused.
    progress : callable, optional
        Receives how many layers were looked at, some more than once, and how many there are.

    Raises
    ------
    TypeError
        When `mod` is no module and no function.
    ValueError
        As `LayerGroup` does, and when there is no Relax function.
    """
    mod, chosen = as_module(mod), None if target is None else known_target(target)
    options = layer_group.LayerGroupOptions(chosen, search, halo, planner, plan=plan)
    if not has_relax(mod):
        raise ValueError("layer_groups: there is no Relax function in the module")
    blocks = layer_group.plan_groups(lowered(mod, fuse=fuse), options, progress)
    plans = [block.groups for block in blocks]
    capacity, left = layer_group.chip_of(options).capacity, []
    for one in plans:
        tensors = {tensor.name: tensor for tensor in one.network.tensors}
        every = (*one.network.layers, *one.network.layouts)
        made = {layer.name: _result(tensors[layer.output]) for layer in every}
        function = one.network.name
        left += [LeftLayer(n, reason, made[n], function) for n, reason in one.left.items()]
    before = layer_group.total(one.before for one in plans)
    after = layer_group.total(one.after for one in plans)
    return LayerGroupReport(
        groups=tuple(
            _summary(one.network.name, group, capacity) for one in plans for group in one.groups
        ),
        left=tuple(left),
        moved_before=before.moved,
        moved_after=after.moved,
        folded_before=sum(one.folded_before for one in plans),
        folded_after=sum(one.folded_after for one in plans),
        moved_least=sum(one.moved_least for one in plans),
        makespan_before=before.cycles,
        makespan_after=after.cycles,
        saved=layer_group.saved_groups(blocks),
    )


def lowered(mod: IRModule, *, fuse: bool = True) -> IRModule:
    """Return a module with its operators as calls of kernels; `mod` itself where they are.

    Operators that are lowered here are fused, with `fuse`.
    """
    if not layer_group.has_operators(mod):
        return mod
    with known_target(DEFAULT_TARGET):
        return Sequential(relax_stages(DEFAULT_TARGET, fuse=fuse).first)(mod)


def _summary(function: str, group: layer_group.PlannedGroup, capacity: int) -> LayerGroupSummary:
    layers, cut = group.group.layers, group.cut
    return LayerGroupSummary(
        function=function,
        layers=tuple(layer.name for layer in layers),
        operators=tuple(layer.operator for layer in layers),
        results=tuple(_result(group.group.tensor(layer.output)) for layer in layers),
        **{f"{letter}_slices": count for letter, count in cut.counts.items()},
        cores=cut.cores,
        shared=cut.shared,
        in_parts=len(group.slices.loops),
        halo=group.halo,
        lmem_peak=group.plan.peak,
        lmem_capacity=capacity,
        bank_conflicts=group.bank_conflicts,
        moved=group.cost.moved,
        repeated_rows=group.repeated_rows,
        cycles=group.cost.cycles,
        planned=group,
    )


def _result(tensor: layer_group.Tensor) -> str:
    if not tensor.is_known:
        return _UNKNOWN
    extents = "x".join(map(str, tensor.shape)) or "a number"
    return f"{extents} {tensor.axes}".rstrip() + f", {tensor.bits} bits"


# ------------------------------------------------------------------------------------- its memories

_STAGES = (" for the next slice", "", " of the slice before")

DEFAULT_CHIP = "sophgo/bm1684x"
"""The chip whose local memory groups use where no target is named."""


def groups(mod: IRModule, target: Target, ask: Ask) -> Iterator[Finding]:
    """Yield the local memory of each group of layers with every planner, and what the groups save.

    Bytes are those in one lane, positions the time steps of a slice. Raises ValueError as
    `LayerGroup` does.
    """
    ask.without_stock("TVM has no groups of layers, which")
    if ask.budget is not None or ask.upper_bounds:
        lacks = "within limits of their own" if ask.budget is not None else "at known sizes alone"
        raise ValueError(f"groups of layers are planned {lacks}: give no others")
    if layer_group.local_memory(target) is None:
        lacks = f"target {target_label(target)} describes no memory {layer_group.SCOPE!r}"
        example = f"a chip that has one is {DEFAULT_CHIP}"
        raise ValueError(f"{lacks}, so no layers can run together; {example}")
    found = layer_groups(mod, target, progress=ask.progress)
    numbers: defaultdict[str, int] = defaultdict(int)
    for summary in found.groups:
        group, function = summary.planned, summary.function
        name, problem = f"{function}, group {numbers[function]}", group.local.problem
        numbers[function] += 1
        plans = [
            planned(problem, planner, solver=partial(_solve, group, planner))
            for planner in ask.names(problem)
        ]
        if group.local.bank_bytes:
            plans.append(PlannedProblem(BUILT, problem, group.plan))
        yield MemoryView(name, tuple(plans), partial(_read_steps, name, group))
    yield from (LeftAlone(one.function, one.layer, one.reason, what="layer") for one in found.left)
    yield found.table(left=False)


def _solve(group: layer_group.PlannedGroup, planner: str, problem: Problem) -> Plan:
    """Plan a group as `LayerGroup` does before it looks at banks, or a plan that does not fit."""
    plan = layer_group.place(group.local, planner)
    return plan or solve(problem, planner, layer_group.GROUP_BUDGET)


def _read_steps(name: str, group: layer_group.PlannedGroup) -> Text:
    """Write a group's time steps as lines, and find the lines that read and write each item."""
    layers, cut = group.group.layers, group.cut
    lines = [f"for slice in range({cut.steps}):  # {cut}; halos: {group.halo}"]
    reads: defaultdict[str, dict[int, None]] = defaultdict(dict)
    writes: defaultdict[str, dict[int, None]] = defaultdict(dict)
    for number, row in enumerate(group.steps.rows):
        parts = []
        for layer in (layers[position] for position in row.layers):
            for read in layer.inputs:
                reads[read][len(lines)] = None
            for made in (layer.output, layer.name):
                writes[made][len(lines)] = None
            parts.append(f"{layer.output} = {layer.operator}({', '.join(layer.inputs)})")
        for moved in row.transfers:
            (reads if moved.kind == layer_group.STORE else writes)[moved.tensor][len(lines)] = None
            is_resident = moved.tensor in group.slices.resident
            stage = _STAGES[moved.stage] if group.steps.pipelined and not is_resident else ""
            how = " part by part" if moved.loop else " once" if is_resident else stage
            parts.append(f"{moved.kind} {moved.tensor}{how}")
        lines.append(f"    step {number}: {' | '.join(parts)}")
    notes = {
        item: BufferNote(
            type=_result(group.group.tensor(item)) if item in group.slices.tensors else "",
            what=_what(group, item),
            reads=tuple(reads[item]),
            writes=tuple(writes[item]),
        )
        for item in group.local.sizes
    }
    return Axis(tuple(lines), tuple(range(1, len(lines))), name), notes


def _what(group: layer_group.PlannedGroup, name: str) -> str:
    if name not in group.slices.tensors:
        return f"working memory of {name}"
    tensor = group.group.tensor(name)
    stays = ", stays between slices" if name in (*group.slices.kept, *group.slices.resident) else ""
    return f"{tensor.kind.value} in slices{stays}"
