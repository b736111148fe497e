# SPDX-License-Identifier: Apache-2.0
"""A kernel as stages: plain loop nests that each make whole elements of what it writes.

Blocks that only move elements (padding, reshaping, the dilation of a transposed convolution) are
computed where they are read, by `s_tir.Schedule.compute_inline`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from passes.ir import IRModule, PrimFunc, element_type, has_any, tir
from passes.ir.operators import is_if_then_else
from passes.layer_group.analysis.stages import (
    NotSliceableError,
    Stage,
    check_block,
    known_shape,
    read_stage,
)


@dataclass(frozen=True, eq=False)
class Kernel:
    """One kernel."""

    buffers: tuple[
        tir.Var, ...
    ]  # The parameters in order, then the buffers that the kernel allocates
    parameters: int  # Number of parameters
    shapes: tuple[tuple[int, ...], ...]  # The extents of each buffer
    stages: tuple[Stage, ...]  # In program order; one writes a buffer, or none

    def bits(self, buffer: int) -> int:
        """Return the bits of one element of a buffer."""
        return element_type(self.buffers[buffer].ty.dtype).nbits

    @property
    def results(self) -> tuple[int, ...]:
        """The numbers of the parameters that it writes."""
        written = {buffer for stage in self.stages for buffer in stage.writes}
        return tuple(buffer for buffer in range(self.parameters) if buffer in written)

    def stages_for(self, output: int) -> tuple[Stage, ...]:
        """Return the stages that a buffer is computed by, in program order."""
        needed, wanted = [], {output}
        for stage in reversed(self.stages):
            if wanted & set(stage.writes):
                needed.append(stage)
                wanted |= {access.buffer for access in stage.reads}
        return tuple(reversed(needed))

    def reads_results(self, output: int) -> bool:
        """Return whether an output is computed from values written to it or another parameter."""
        read = [access.buffer for stage in self.stages_for(output) for access in stage.reads]
        return any(buffer in self.results for buffer in read)


def read_kernel(func: PrimFunc) -> Kernel:
    """Read a kernel, and compute the blocks that only move elements where they are read.

    Raises NotSliceableError when it is no row of plain loop nests over buffers of known shapes.
    """
    kernel = _read(func)
    moved = [stage.name for stage in kernel.stages if _only_moves(kernel, stage)]
    if not moved:
        return kernel
    schedule = Schedule(IRModule({"main": func}))
    for name in moved:
        # A block that TVM does not inline, as it declares less than it writes, is a stage.
        with suppress(ScheduleError):
            schedule.compute_inline(schedule.get_sblock(name, "main"))
    return _read(schedule.mod["main"])


def _read(func: PrimFunc) -> Kernel:
    root = func.body
    if not isinstance(root, tir.BlockRealize):
        raise NotSliceableError("it is not in S-TIR with a root block")
    check_block("root", root)
    if root.block.init is not None:
        raise NotSliceableError("its root block has an initial statement")
    if not all(map(tir.is_buffer, func.params)):
        raise NotSliceableError("it has parameters that are not buffers")
    buffers = (*func.params, *root.block.alloc_buffers)
    shapes = tuple(map(known_shape, buffers))
    number = {buffer.__chandle__(): i for i, buffer in enumerate(buffers)}
    stages = tuple(
        read_stage(loops, realize, number, shapes) for loops, realize in _nests(root.block.body, ())
    )
    written = [buffer for stage in stages for buffer in stage.writes]
    if len(set(written)) != len(written):
        raise NotSliceableError("a buffer is written by more than one block")
    _check_order(stages, len(func.params))
    return Kernel(buffers, len(func.params), shapes, stages)


def _check_order(stages: Sequence[Stage], parameters: int) -> None:
    made = {buffer: i for i, stage in enumerate(stages) for buffer in stage.writes}
    for i, stage in enumerate(stages):
        for access in stage.reads:
            if access.buffer >= parameters and made.get(access.buffer, i) >= i:
                raise NotSliceableError(f"block {stage.name!r} reads what a later block writes")


def _nests(
    stmt: Any, loops: tuple[tir.Loop, ...]
) -> Iterator[tuple[tuple[tir.Loop, ...], tir.BlockRealize]]:
    """Yield each block with the loops around it."""
    if isinstance(stmt, tir.Sequence):
        if loops:
            raise NotSliceableError("blocks share a loop")
        for part in stmt.seq:
            yield from _nests(part, loops)
    elif isinstance(stmt, tir.Loop):
        yield from _nests(stmt.body, (*loops, stmt))
    elif isinstance(stmt, tir.BlockRealize):
        yield loops, stmt
    else:
        raise NotSliceableError(f"{type(stmt).__name__} stands outside of a block")


def _only_moves(kernel: Kernel, stage: Stage) -> bool:
    """Return whether a stage's value is one load, or a constant where a condition fails."""
    return (
        not stage.inner
        and stage.init is None
        and len(stage.writes) == 1
        and stage.writes[0] >= kernel.parameters
        and isinstance(stage.body, tir.Store)
        and len({other.name for other in kernel.stages}) == len(kernel.stages)
        and _is_movement(stage.body.value)
    )


def _is_movement(value: Any) -> bool:
    if not is_if_then_else(value):
        return isinstance(value, tir.Load)
    condition, *cases = value.args
    return not has_any(condition, tir.Load) and all(
        _is_movement(case) or not has_any(case, tir.Load) for case in cases
    )
