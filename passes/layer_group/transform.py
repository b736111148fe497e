# SPDX-License-Identifier: Apache-2.0
"""`LayerGroup`: layers of a network that run together in local memory, slice by slice."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tvm import relax

from passes.driver import FORMS, Form
from passes.ir import IRModule, Pass, Target, as_target, first_line, make_pass, nodes_in, tir
from passes.ir.operators import operator_name
from passes.layer_group.analysis.read_network import BlockNetwork, read_networks
from passes.layer_group.analysis.stages import NOT_ANALYSED
from passes.layer_group.planning.layer_groups import (
    SEARCHES,
    LayerGroups,
    plan_layer_groups,
    with_layouts,
)
from passes.layer_group.planning.network import NetworkIndex, Repeats
from passes.layer_group.planning.planned_group import Chip, PlannedGroup
from passes.layer_group.planning.saved import as_text, read_groups
from passes.layer_group.planning.search import HALOS, Progress, silent
from passes.layer_group.rewrite.group_calls import GroupCall, call_groups
from passes.layer_group.rewrite.group_function import GroupKernel, group_kernel
from passes.layer_group.rewrite.local_buffers import SCOPE
from passes.pass_errors import deep_stack
from passes.planning import check, get_planner
from passes.relax import rx
from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryHierarchy, MemoryScope, target_label

TWIN_LAYERS = 32
"""Layers of a group at most that LLVM compiles: its time grows faster than a kernel."""

LOGGER = logging.getLogger("tvm_ext.LayerGroup")
"""Says at level INFO which layers are left alone, and why; warns where cycles are a guess."""


@dataclass(frozen=True)
class LayerGroupOptions:
    """The options of `LayerGroup`; see there.

    Raises ValueError if an option is not known, or the target is described badly.
    """

    target: Target | None = None
    search: str = "dynamic_programming"
    halo: str = "cheapest"
    planner: str = "best"
    form: Form | None = None
    most_layers: int | None = None
    plan: str | Path | None = None

    def __post_init__(self) -> None:
        most = self.most_layers
        if most is not None and (type(most) is not int or most < 1):
            raise ValueError(f"LayerGroup: most_layers must be a positive number, got {most!r}")
        known = (("search", [*SEARCHES]), ("halo", [*HALOS]), ("form", [None, *FORMS]))
        for name, values in known:
            if (value := getattr(self, name)) not in values:
                names = ", ".join(map(repr, values))
                raise ValueError(f"LayerGroup: {name} must be one of {names}, got {value!r}")
        get_planner(self.planner)
        if self.plan is not None:
            read_groups(self.plan)
        if self.target is not None:
            local_memory(self.target)


@dataclass(frozen=True, eq=False)
class PlannedBlock:
    """One block of a Relax function with its groups."""

    block: BlockNetwork  # The network of the block
    groups: LayerGroups  # The groups that were chosen
    calls: tuple[GroupCall, ...]  # The kernel of each group, and what it computes


def LayerGroup(  # noqa: N802
    target: Target | str | Mapping[str, Any] | None = None,
    *,
    search: str = "dynamic_programming",
    halo: str = "cheapest",
    planner: str = "best",
    form: Form | None = None,
    most_layers: int | None = None,
    plan: str | Path | None = None,
) -> Pass:
    """Run layers of a network together in local memory, slice by slice.

    The pass stands after operator fusion and before memory is allocated: see
    `tvm_ext.relax_pipeline`. It may also be given a module whose operators are not lowered yet;
    then the functions in which it finds groups are legalized.

    Each group becomes one kernel with explicit loads and stores between ``global`` and
    ``local.LMEM``, so that nothing between its layers is ever in global memory.

    Parameters
    ----------
    target : Target or str or mapping, optional
        The chip, whose ``local.LMEM`` has a capacity and the facts ``lanes`` and ``eu_bytes``.
        By default the target that is current when the pass runs. Where it has no such memory,
        nothing is grouped.
    search : {"dynamic_programming", "tail_to_head"}
        The groups of the lowest price by `passes.layer_group.planning.cost`: cycles, and those of
        all transfers once more; or from the last layer on the longest group that fits.
    halo : {"cheapest", "recompute", "keep"}
        What happens to rows that two slices need: they are computed again, or they stay in a
        circular buffer; or what has the lower price, group by group.
    planner : str
        Any planner of `passes.planning.planners`: what places a group's tensors in local memory.
    form : {"address", "arena"}, optional
        ``address`` writes ``allocated_addr`` onto each buffer, in bytes in a lane, for a code
        generator; ``arena`` puts all of them into one allocation and calls layers as functions,
        which a CPU runs. By default ``arena`` for a target that TVM generates code for, and
        ``address`` otherwise.
    most_layers : int, optional
        Layers of a group at most. By default 32 in the form ``arena``, whose kernels a CPU's
        compiler gets, and any number otherwise.
    plan : str or Path, optional
        A file with the groups, as `saved_groups` writes it: they are checked, priced and written as
        any others, and nothing is searched in the blocks that it names.

    Returns
    -------
    tvm.transform.Pass
        A module pass.

    Raises
    ------
    ValueError
        At once when an option is wrong, or the plan cannot be read; when the pass runs, when there
        is no target, its local memory is not described as needed, or a group of the plan is not
        in the module or does not fit.
    """
    chosen = as_target(target)
    options = LayerGroupOptions(chosen, search, halo, planner, form, most_layers, plan)

    def transform(mod: IRModule) -> IRModule:
        lowered = relax.transform.LegalizeOps()(mod) if has_operators(mod) else mod
        return with_groups(mod, lowered, plan_groups(lowered, options))

    return make_pass("LayerGroup", transform)


def with_groups(mod: IRModule, lowered: IRModule, planned: Sequence[PlannedBlock]) -> IRModule:
    """Return a module with the groups that were planned for it as it was `lowered`."""
    for block in planned:
        name = block.groups.network.name
        for layer, reason in block.groups.left.items():
            LOGGER.info("function %r: layer %r is left: %s", name, layer, reason)
    changes = [(block.block, block.calls) for block in planned if block.calls]
    if not changes:
        return mod
    after = call_groups(lowered, changes)
    changed = {str(block.function.name_hint) for block, _ in changes}
    for variable, function in mod.functions.items():
        # Functions that have no group stay as they were.
        if isinstance(function, rx.Function) and str(variable.name_hint) not in changed:
            after.update_func(after.get_global_var(str(variable.name_hint)), function)
    return after


@deep_stack
def plan_groups(
    mod: IRModule, options: LayerGroupOptions, progress: Progress = silent
) -> tuple[PlannedBlock, ...]:
    """Decide which layers form groups in each block of the Relax functions that calls anything.

    `progress` receives how far the search of a block is. Raises ValueError as `LayerGroup` says.
    """
    target = _target(options)
    grouped = local_memory(target) is not None
    chip = chip_of(options)
    if grouped and chip.machine is ESTIMATE:
        _warn_of_estimate(target_label(target))
    form: Form = options.form or ("address" if target.kind.name == "ext_dev" else "arena")
    most_layers = options.most_layers or (TWIN_LAYERS if form == "arena" else None)
    found = []
    given = {} if options.plan is None else read_groups(options.plan)
    blocks = read_networks(mod)
    for key in sorted(given.keys() - {block.key for block in blocks}):
        raise ValueError(
            f"LayerGroup: plan {str(options.plan)!r}: there is no block {key[1]} of calls in a "
            f"function {key[0]!r}"
        )
    for number, block in enumerate(blocks):
        network = block.network
        if not grouped:
            reason = f"the target has no memory {SCOPE!r}"
            layers = (replace(layer, reason=layer.reason or reason) for layer in network.layers)
            network = replace(network, layers=tuple(layers))
        groups = plan_layer_groups(
            network,
            chip,
            search=options.search,
            halo=options.halo,
            most_layers=most_layers,
            given=given.get(block.key) if grouped else None,
            progress=progress,
        )
        found.append(_written(block, number, groups, form, chip.lanes.count, block.key in given))
    return tuple(found)


@cache
def _warn_of_estimate(target: str) -> None:
    """Say once for a target that its cycles are an estimate."""
    rates = (f"{pipe.name}: {pipe.rate} {pipe.unit} a cycle" for pipe in ESTIMATE)
    LOGGER.warning(
        "target %s describes no pipes: cycles are counted with %s; describe its own with "
        "target_hw.with_machine",
        target,
        ", ".join(rates),
    )


def saved_groups(blocks: Sequence[PlannedBlock]) -> str:
    """Return the groups of blocks as the text of a file, which `LayerGroup` takes as its plan."""
    return as_text((block.block.key, block.groups.groups) for block in blocks)


def _written(
    block: BlockNetwork,
    number: int,
    groups: LayerGroups,
    form: Form,
    lanes: int,
    is_given: bool,
) -> PlannedBlock:
    """Write the groups of the block of this number; ungroup layers whose group is rejected.

    A group is rejected if it cannot be written, or if it moves more bytes than its layers do alone
    and no person has given it.
    """
    kept: list[PlannedGroup] = []
    calls: list[GroupCall] = []
    left = dict(groups.left)
    index = NetworkIndex(groups.network)
    repeats = Repeats(index)
    written: dict[Hashable, GroupKernel] = {}  # Networks repeat their blocks.
    for group in groups.groups:
        alone = sum(groups.alone[layer.name].moved for layer in group.group.layers)
        if group.cost.moved > alone and not is_given:
            reason = f"its group would move {group.cost.moved} bytes, its layers alone {alone}"
        else:
            try:
                check(group.local.problem, group.plan)
                layers = (*group.group.layers, *index.layouts(group.group.loaded))
                run = repeats.run(group.group.first, group.group.last)
                same = run, group.content, tuple(block.calls[layer.name] for layer in layers)
                if same not in written:
                    written[same] = group_kernel(group, block.calls, lanes, form)
                name = f"{groups.network.name}_group_{number}_{len(kept)}"
                calls.append(GroupCall(name, group.group, written[same]))
                kept.append(group)
                continue
            except NOT_ANALYSED as error:
                reason = f"its group cannot be written: {first_line(error)}"
        left.update((layer.name, reason) for layer in group.group.layers)
    groups = replace(groups, groups=tuple(kept), left=with_layouts(index, left))
    return PlannedBlock(block, groups, tuple(calls))


def chip_of(options: LayerGroupOptions) -> Chip:
    """Return what groups are planned for; a chip without memory where the target has none."""
    target, machine = _target(options), ESTIMATE
    if target.features.machine is not None:
        machine = Machine.from_target(target)
        if not all(pipe.name in machine for pipe in ESTIMATE):
            machine = ESTIMATE
    return Chip(local_memory(target) or _NO_MEMORY, machine, options.planner)


def has_operators(mod: IRModule) -> bool:
    """Return whether a module has operators that are not calls of kernels yet."""
    functions = (one for one in mod.functions.values() if isinstance(one, rx.Function))
    calls = (call for function in functions for call in nodes_in(function, tir.Call))
    operators = (call.op for call in calls if operator_name(call.op))
    return any(operator.get_attr("FLegalize") is not None for operator in operators)


ESTIMATE = Machine(
    (
        Pipe("GDMA", "bytes", 64, 100, basis="estimate"),
        Pipe("TIU", "multiply-adds", 1024, 20, basis="estimate"),
    )
)
"""Stands in for a target that does not describe its pipes."""

_NO_MEMORY = MemoryScope(SCOPE, 1, facts=(("eu_bytes", 1), ("lanes", 1)))


def _target(options: LayerGroupOptions) -> Target:
    target = options.target or Target.current(allow_none=True)
    if target is None:
        raise ValueError(
            "LayerGroup: there is no target; give one, or run the pass in `with target:`"
        )
    return target


def local_memory(target: Target) -> MemoryScope | None:
    """Return one lane's local memory of a target, or None where it has none.

    Raises ValueError when its capacity, lanes or execution unit are not described.
    """
    if target.features.memory is None:
        return None
    memories = MemoryHierarchy.from_target(target)
    if SCOPE not in memories:
        return None
    memory = memories[SCOPE]
    try:
        Chip(memory, ESTIMATE)
    except ValueError as error:
        raise ValueError(f"LayerGroup: {error}") from error
    return memory
