# SPDX-License-Identifier: Apache-2.0
"""The arena of a model for TensorFlow Lite Micro, as the memories of a report."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path

from tvm_ext.hosts.tflite_micro.arena_head import ArenaHead
from tvm_ext.hosts.tflite_micro.fit import Fit, Fitting, fit
from tvm_ext.hosts.tflite_micro.read_model import Model
from tvm_ext.named_planners import STOCK
from tvm_ext.report.ask import Ask
from tvm_ext.report.memory_view import Axis, BufferNote, MemoryView, PlannedProblem, written
from tvm_ext.report.report import Finding

SUFFIX = ".tflite"


def read_arena(path: str | PathLike[str], ask: Ask) -> Iterator[Finding]:
    """Yield the head of a model's arena in each way to plan it, and notes on the rest.

    TensorFlow Lite Micro's own plan, or the file's, stands beside ours for the operators and their
    results as they are. Raises ValueError and ImportError as `fit` does.
    """
    name = fspath(path)
    if not Path(name).is_file():
        raise ValueError(f"{name}: no such file")
    found = fit(Path(name).read_bytes(), name)
    for choice in found.choices:
        yield _view(found, choice, ask)
    if found.usage is not None:
        usage = found.usage
        yield (
            f"TensorFlow Lite Micro reports {usage.total:,} bytes for the arena: {usage.head:,} in "
            f"its head, which is what is planned, and {usage.tail:,} in its tail"
        )
    if found.remark:
        yield f"{found.remark}; scratch memory and the arena's tail are not known"


def _view(found: Fit, choice: Fitting, ask: Ask) -> MemoryView:
    plans = ask.plan(choice.problem)
    if not choice.in_place and not choice.moved:
        plans = (PlannedProblem(STOCK, choice.problem, found.stock, has_offsets=True), *plans)
    notes = {
        each.name: BufferNote(type=_shape(choice.model, each.tensor))
        for each in choice.arena.residents
        if each.tensor is not None
    }
    text = written(axis_of(choice.model, choice.arena), notes)
    return MemoryView(Path(found.model.name).stem, plans, text, f"arena, {choice.label}")


def _shape(model: Model, number: int) -> str:
    tensor = model.tensors[number]
    return f"{tensor.type} {'×'.join(map(str, tensor.shape))}".rstrip()


def axis_of(model: Model, arena: ArenaHead) -> Axis:
    """Return a line for the inputs and one for each operator, with the times of each."""
    lines, begins, labels = ["inputs"], [0], ["inputs"]
    for step in arena.steps:
        graph = model.subgraphs[step.subgraph]
        one = graph.operators[step.operator]
        names = [
            ", ".join(graph.tensors[number].name for number in numbers)
            for numbers in (one.outputs, one.operands)
        ]
        lines.append(f"{names[0]} = {one.name}({names[1]})")
        begins.append(step.time)
        labels.append(one.name)
    end = max((each.last for each in arena.residents), default=0) + 1
    where = [sum(begin <= time for begin in begins) - 1 for time in range(end + 1)]
    name = Path(model.name).stem
    return Axis(tuple(lines), tuple(where), name, labels=tuple(labels))
