# SPDX-License-Identifier: Apache-2.0
"""Random kernels of several phases: planned, replayed, and held against numpy."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tvm
from block_replay import replay
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from opencl_runs import lowered, shared_bytes
from tagged_bytes import FaultError

import tvm_ext

THREADS, MOST_BUFFERS = 8, 5


@dataclass
class Program:
    """A kernel as text, and as steps that numpy takes for all threads at once."""

    draw: Any
    lines: list[str] = field(default_factory=list)
    buffers: int = 0
    slots: int = 0

    def number(self, least: int, most: int) -> int:
        return int(self.draw(st.integers(least, most)))

    def steps(self, known: list[str], depth: int) -> list[tuple[Any, ...]]:
        """Write statements at a depth, and return them; `known` are the buffers with values."""
        pad, steps = "    " * (depth + 1), []
        own: list[str] = []
        for _ in range(self.number(1, 5)):
            kind = self.number(0, 7 if depth < 2 else 3)
            if self.buffers < MOST_BUFFERS and (kind == 0 or not own):
                name, self.buffers = f"s{self.buffers}", self.buffers + 1
                scope = self.draw(st.sampled_from(["shared", "shared", "shared.dyn"]))
                self.lines.append(f'{pad}{name} = T.alloc_buffer((8,), "float32", scope="{scope}")')
                steps.append(self._set(name, pad))
                own.append(name)
            elif kind <= 1 and len(known + own) > 1:
                target = self.draw(st.sampled_from(own or known))
                source = self.draw(st.sampled_from([n for n in known + own if n != target]))
                steps.append(self._mix(target, source, pad))
            elif kind <= 3 and known + own:
                steps.append(self._out(self.draw(st.sampled_from(known + own)), pad))
            elif kind == 4:
                rounds = self.number(1, 3)
                self.lines.append(f"{pad}for i{len(self.lines)} in range({rounds}):")
                steps.append(("loop", rounds, self.steps(known + own, depth + 1)))
            elif kind == 5:
                self.lines.append(f"{pad}for i{len(self.lines)} in range(n[0]):")
                steps.append(("rounds", self.steps(known + own, depth + 1)))
            elif kind == 6 and own:
                steps.append(self._some(self.draw(st.sampled_from(own)), pad))
            elif kind == 7:
                least = self.number(0, 1)
                self.lines.append(f"{pad}if T.tvm_thread_invariant(n[0] > {least}):")
                steps.append(("if", least, self.steps(known + own, depth + 1)))
        self.lines.append(f"{pad}T.evaluate(0)")
        return steps

    def _set(self, name: str, pad: str) -> tuple[Any, ...]:
        at = self.number(0, 7)
        self.lines.append(f"{pad}{name}[tx] = x[(tx + {at}) % 8]")
        return "set", name, at

    def _some(self, name: str, pad: str) -> tuple[Any, ...]:
        count, at = self.number(1, 7), self.number(0, 7)
        self.lines.append(f"{pad}if tx < {count}:")
        self.lines.append(f"{pad}    {name}[tx] = x[(tx + {at}) % 8]")
        return "some", name, count, at

    def _mix(self, target: str, source: str, pad: str) -> tuple[Any, ...]:
        factor, at = 2 * self.number(0, 3) + 1, self.number(0, 7)
        index = f"(tx * {factor} + {at}) % 8"
        self.lines.append(f"{pad}{target}[tx] = {target}[tx] * T.float32(0.5) + {source}[{index}]")
        return "mix", target, source, factor, at

    def _out(self, source: str, pad: str) -> tuple[Any, ...]:
        slot, self.slots = self.slots, self.slots + 1
        at = self.number(0, 7)
        index = f"{slot * 8} + tx"
        self.lines.append(f"{pad}o[{index}] = o[{index}] + {source}[(tx + {at}) % 8]")
        return "out", source, slot, at


def computed(steps: list[tuple[Any, ...]], x: np.ndarray, n: int, o: np.ndarray) -> None:
    values: dict[str, np.ndarray] = {}
    threads = np.arange(THREADS)

    def run(inner: list[tuple[Any, ...]]) -> None:
        for kind, *facts in inner:
            if kind == "loop":
                for _ in range(facts[0]):
                    run(facts[1])
            elif kind == "rounds":
                for _ in range(n):
                    run(facts[0])
            elif kind == "some":
                name, count, at = facts
                values[name][:count] = x[(threads[:count] + at) % 8]
            elif kind == "if":
                if n > facts[0]:
                    run(facts[1])
            elif kind == "set":
                values[facts[0]] = x[(threads + facts[1]) % 8]
            elif kind == "mix":
                target, source, factor, at = facts
                values[target] = values[target] * 0.5 + values[source][(threads * factor + at) % 8]
            else:
                source, slot, at = facts
                o[slot * 8 : slot * 8 + 8] += values[source][(threads + at) % 8]

    run(steps)


@st.composite
def programs(draw: Any) -> tuple[Any, list[tuple[Any, ...]], int]:
    """Return a kernel, its steps, and how many rows of results it has."""
    program = Program(draw)
    steps = program.steps([], 0)
    rows = max(program.slots, 1)
    head = f"""
@T.prim_func(s_tir=True)
def main(
    x: T.Buffer((8,), "float32"), n: T.Buffer((1,), "int32"), o: T.Buffer(({rows * 8},), "float32")
):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 8)
"""
    return tvm.script.from_source(head + "\n".join(program.lines)), steps, rows


def check(func: Any, steps: list[tuple[Any, ...]], rows: int, n: int) -> None:
    x = np.random.default_rng(0).standard_normal(THREADS).astype("float32")
    expected = np.zeros(rows * THREADS, "float32")
    computed(steps, x, n, expected)
    sizes = {}
    arrays = {"x": x, "n": np.array([n], "int32"), "o": np.zeros_like(expected)}
    try:
        alone = lowered(func, config={"tirx.disable_storage_rewrite": True})
        replay(alone, arrays, (1,), "backward")
    except FaultError:
        # `ThreadSync` takes a barrier in a branch for one that threads always come by.
        reject()
    for name, within in (
        ("stock", nullcontext),
        ("existing", tvm_ext.use_plan_shared_memory),
        ("insert", lambda: tvm_ext.use_plan_shared_memory(barriers="insert")),
    ):
        kernel = lowered(func, within)
        sizes[name] = shared_bytes(kernel)
        if name == "stock":
            continue
        arrays = {"x": x, "n": np.array([n], "int32"), "o": np.zeros_like(expected)}
        replay(kernel, arrays, (1,), "backward" if n else "random")
        np.testing.assert_allclose(arrays["o"], expected, rtol=1e-4, atol=1e-5)
    assert sizes["insert"] <= sizes["existing"]


@settings(max_examples=4)
@given(programs(), st.integers(0, 2))
def test_random_kernels(program: tuple[Any, list[tuple[Any, ...]], int], n: int):
    check(*program, n)


@pytest.mark.slow
@settings(max_examples=150)
@given(programs(), st.integers(0, 2))
def test_random_kernels_sweep(program: tuple[Any, list[tuple[Any, ...]], int], n: int):
    check(*program, n)
