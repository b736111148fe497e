# SPDX-License-Identifier: Apache-2.0
"""The tensors of a network as a problem of several memories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tvm import relax
from tvm.target import Target

from passes.gmem import GMEMOptions
from passes.planning import MemoriesProblem, Traffic
from passes.planning.files import read_memories_problem
from target_hw.memory import MemoryScope
from tvm_ext.lowering import DEFAULT_TARGET, capture_relax, known_target
from tvm_ext.reading.programs import TABLE, read_network


def problems_of(
    what: str, memories: Mapping[str, MemoryScope], target: str | Target | None = None
) -> list[MemoriesProblem]:
    """Return a problem for each Relax function of a network, or of a table of buffers.

    Its buffers are the tensors between the operators, fused as TVM fuses them; those that the
    function returns and those whose size only the running program knows are not among them. Each
    is touched where an operator writes or reads it.

    Parameters
    ----------
    what : str
        A workload, a file with a network, or a table (.csv).
    memories : mapping of str to MemoryScope
        By the user's words, the fastest first.
    target : str or tvm.target.Target, optional
        What the network is lowered for.
    """
    if what.endswith(TABLE):
        words = {word: scope.name for word, scope in memories.items()}
        with open(what, encoding="utf-8-sig", newline="") as stream:
            name = Path(what).name
            return [read_memories_problem(stream, name, [*memories.values()], words)]
    mod = read_network(what, "--memories")  # A file may register the target.
    chip = known_target(target or DEFAULT_TARGET)
    lowered = capture_relax(mod, chip)
    options = GMEMOptions(target=chip)
    alignment = options.gmem().offset_alignment
    found = []
    for variable in sorted(lowered.get_global_vars(), key=lambda one: one.name_hint):
        if not isinstance(lowered[variable], relax.Function):
            continue
        group = options.read(lowered, variable).main
        buffers = tuple(replace(b, alignment=alignment) for b in group.problem.buffers)
        traffic = {b.name: Traffic(touches=group.touched_at[b.name]) for b in buffers}
        if buffers:
            name = variable.name_hint
            found.append(MemoriesProblem(buffers, tuple(memories.values()), traffic, name))
    if not found:
        raise ValueError(f"{what}: no function has tensors of a size that is known before the run")
    return found
