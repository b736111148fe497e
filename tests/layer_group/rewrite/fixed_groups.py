# SPDX-License-Identifier: Apache-2.0
"""Groups that a test chooses, written and built without a search."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import tvm

from passes.layer_group.analysis.read_network import BlockNetwork, read_networks
from passes.layer_group.planning.cut import Cut
from passes.layer_group.planning.layer_groups import by_dependencies
from passes.layer_group.planning.network import NetworkIndex
from passes.layer_group.planning.planned_group import Chip, PlannedGroup, plan_group
from passes.layer_group.rewrite.group_calls import GroupCall, call_groups
from passes.layer_group.rewrite.group_function import group_kernel
from passes.planning import check
from target_hw.machine import Machine, Pipe
from target_hw.memory import MemoryScope

LANES = 8


def chip(kib: int = 64) -> Chip:
    """Return a small chip: eight lanes of `kib` KiB."""
    facts = (("eu_bytes", 16), ("lanes", LANES))
    memory = MemoryScope("local.LMEM", kib * 1024, alignment=16, facts=facts)
    pipes = (Pipe("GDMA", "bytes", 64, 100), Pipe("TIU", "multiply-adds", 512, 20))
    return Chip(memory, Machine(pipes))


def grouped(
    mod: tvm.IRModule,
    groups: Mapping[tuple[int, ...], Cut],
    *,
    form: str = "arena",
    kib: int = 64,
) -> tuple[tvm.IRModule, list[PlannedGroup]] | None:
    """Return a lowered module with some of its layers grouped; None where they do not fit.

    Parameters
    ----------
    mod
        Lowered, with one block.
    groups
        Numbers of layers, as they are written, with the cut of each group.
    """
    block = block_of(mod)
    index = NetworkIndex(by_dependencies(block.network))
    position = {layer.name: n for n, layer in enumerate(index.network.layers)}
    planned = []
    calls = []
    for number, (layers, cut) in enumerate(groups.items()):
        at = sorted(position[block.network.layers[n].name] for n in layers)
        assert at == list(range(at[0], at[-1] + 1)), "its layers follow each other"
        plan = plan_group(index.group(at[0], at[-1]), cut, chip(kib))
        if plan is None:
            return None
        check(plan.local.problem, plan.plan)
        assert plan.plan.peak <= kib * 1024
        kernel = group_kernel(plan, block.calls, LANES, form)
        calls.append(GroupCall(f"group_{number}", plan.group, kernel))
        planned.append(plan)
    return call_groups(mod, [(block, calls)]), planned


def allocations(function: Any, scope: str = "local.LMEM") -> list[Any]:
    """Return the buffers that a kernel allocates in a scope."""
    found = []

    def visit(node: Any) -> None:
        if isinstance(node, tvm.tirx.AllocBuffer) and node.buffer.ty.storage_scope == scope:
            found.append(node.buffer)

    body = function.body.block.body
    for part in body.seq if isinstance(body, tvm.tirx.SeqStmt) else [body]:
        visit(part)
    return found


def everything(mod: tvm.IRModule) -> tuple[int, ...]:
    """Return the numbers of all layers of a module with one block."""
    return tuple(range(len(block_of(mod).network.layers)))


@lru_cache(maxsize=16)  # A test asks for the block of one module several times.
def block_of(mod: tvm.IRModule) -> BlockNetwork:
    """Read the one block of a module, which nobody changes."""
    (block,) = read_networks(mod)
    return block
