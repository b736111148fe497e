# SPDX-License-Identifier: Apache-2.0
"""Run a model in TensorFlow Lite Micro: what its arena takes, what it computes, what kernels ask.

Everything here needs the package ``tflite-micro``, whose kernels are the reference ones.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any, TypeVar

import numpy as np

from target_hw.memory import round_up
from tvm_ext.hosts.tflite_micro.arena_head import ALIGNMENT, Scratch
from tvm_ext.hosts.tflite_micro.read_model import NOT_PLANNED, Model, Subgraph
from tvm_ext.hosts.tflite_micro.write_plan import with_order, with_plan

LARGEST_ARENA = 1 << 28
"""Bytes of the arena in which a model is first tried."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Usage:
    """Bytes of an arena as TensorFlow Lite Micro reports them."""

    head: int  # Tensors and scratch memory
    tail: int  # Bytes that are kept for good: structures, quantisation, variables

    @property
    def total(self) -> int:
        """Bytes of the whole arena that are used."""
        return self.head + self.tail


def is_installed() -> bool:
    """Return whether the package ``tflite-micro`` can be imported."""
    return find_spec("tflite_micro") is not None


def open_model(content: bytes, arena: int = LARGEST_ARENA) -> Any:
    """Return an interpreter of a model in an arena of some bytes.

    Raises
    ------
    ValueError
        If TensorFlow Lite Micro cannot hold the model, in its own words.
    """
    from tflite_micro import runtime

    interpreter, said = _heard(lambda: runtime.Interpreter.from_bytes(content, arena_size=arena))
    if isinstance(interpreter, Exception):
        raise ValueError(" ".join(said.split()) or str(interpreter))
    return interpreter


def apart(action: Callable[..., Result], *arguments: Any) -> Result:
    """Return the result of an action in a process of its own: TensorFlow Lite Micro may crash.

    It does so for a damaged file, an arena that is far too small, or a shape that a kernel does not
    expect.

    Raises
    ------
    ValueError
        If the process ends; an error of the action is raised as it is.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        try:
            return pool.submit(action, *arguments).result()
        except BrokenProcessPool as error:
            raise ValueError("it crashes") from error


def measure(content: bytes, arena: int = LARGEST_ARENA) -> Usage:
    """Return what a model takes of an arena; raises as `open_model` does."""
    _, said = _heard(open_model(content, arena).print_allocations)
    found = {kind: int(size) for kind, size in re.findall(r"allocation (\w+) (\d+) bytes", said)}
    return Usage(found["head"], found["tail"])


def holds(content: bytes, arena: int) -> bool:
    """Return whether TensorFlow Lite Micro can prepare a model in an arena of so many bytes."""
    try:
        apart(measure, content, arena)
    except ValueError:
        return False
    return True


def results_of(content: bytes, graph: Subgraph, runs: int, seed: int = 0) -> list[list[bytes]]:
    """Run a model on random inputs, one run after the other; return the bytes of its outputs.

    Parameters
    ----------
    content : bytes
        The file.
    graph : Subgraph
        The model's first one, whose inputs and outputs are those of the model.
    runs : int
        How often it is run; a model with a state goes on from run to run.
    seed : int
        What the inputs are drawn from.
    """
    interpreter, drawn, results = open_model(content), np.random.default_rng(seed), []
    for _ in range(runs):
        for number in range(len(graph.inputs)):
            details = interpreter.get_input_details(number)
            interpreter.set_input(_random(drawn, details), number)
        status, said = _heard(interpreter.invoke)
        if isinstance(status, Exception):
            raise ValueError(" ".join(said.split()) or str(status))
        outputs = range(len(graph.outputs))
        results.append([interpreter.get_output(at).tobytes() for at in outputs])
    return results


def _random(drawn: np.random.Generator, details: Any) -> np.ndarray[Any, Any]:
    kind, shape = np.dtype(details["dtype"]), tuple(details["shape"])
    if kind == np.bool_:
        return drawn.integers(0, 2, shape).astype(kind)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        # Wide integers are most often numbers of something; small ones are right for any table.
        low, high = (limits.min, limits.max) if kind.itemsize < 4 else (0, 2)
        return drawn.integers(low, high, shape, endpoint=True).astype(kind)
    return drawn.standard_normal(shape).astype(kind)


def scratch_of(model: Model) -> Scratch:
    """Return the scratch memory that kernels ask for, in bytes by subgraph and operator.

    TensorFlow Lite Micro reports the head as a whole. So all tensors are pinned at offsets that
    end at 0, which leaves only scratch memory in the head; and where there is some, the model is
    cut to half of one subgraph's operators, until one is left, beside those that run subgraphs and
    ask for none. Nothing is run.

    Raises
    ------
    ValueError
        If TensorFlow Lite Micro cannot hold the model.
    """
    offsets = [-round_up(t.size, ALIGNMENT) if t.in_arena else NOT_PLANNED for t in model.tensors]
    pinned = with_plan(model, offsets)
    if not measure(pinned).head:
        return {}
    shift = len(pinned) - len(model.content)
    graphs = list(zip(model.subgraphs, model.operator_vectors, strict=True))

    def head(subgraph: int, part: Sequence[int]) -> int:
        content = pinned
        for number, (graph, vector) in enumerate(graphs):
            runs = [at for at, one in enumerate(graph.operators) if one.runs]
            kept = sorted([*runs, *part]) if number == subgraph else runs
            content = with_order(content, shift + vector, kept) if vector else content
        return measure(content).head

    found = {}
    for subgraph, (graph, _) in enumerate(graphs):
        open_parts = [[at for at, one in enumerate(graph.operators) if not one.runs]]
        while open_parts:
            part = open_parts.pop()
            size = head(subgraph, part) if part else 0
            if size and len(part) == 1:
                found[subgraph, part[0]] = size
            elif size:
                open_parts += [part[: len(part) // 2], part[len(part) // 2 :]]
    return found


def _heard(action: Callable[[], Result]) -> tuple[Result | Exception, str]:
    """Return the result or the error of an action, and what C++ writes to standard error."""
    with tempfile.TemporaryFile() as spoken:
        kept = os.dup(2)
        os.dup2(spoken.fileno(), 2)
        try:
            found: Result | Exception = action()
        except Exception as error:  # Its Python code reads the file too, and errs on a damaged one
            found = error
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        spoken.seek(0)
        return found, spoken.read().decode("utf-8", "replace")
