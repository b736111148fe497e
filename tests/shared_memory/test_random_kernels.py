# SPDX-License-Identifier: Apache-2.0
"""Random kernels of several phases: planned, replayed, and held against numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import tvm
from block_replay import replay
from hypothesis import reject
from hypothesis import strategies as st
from opencl_runs import lowered, shared_bytes
from sweeps import swept
from tagged_bytes import FaultError

import tvm_ext

THREADS, MOST_BUFFERS, REGISTERS = 8, 8, 2

Number = Callable[[int, int], int]
"""Draws a number between two, both included."""


@dataclass
class Program:
    """A kernel as text, and as steps that numpy takes for all threads at once."""

    number: Number
    lines: list[str] = field(default_factory=list)
    buffers: int = 0
    slots: int = 0

    def steps(self, known: list[str], depth: int) -> list[tuple[Any, ...]]:
        """Write statements at a depth, and return them; `known` are the buffers with values."""
        pad, steps = "    " * (depth + 1), []
        own: list[str] = []
        copied: list[str] = []  # Each is a group of its own, the last one committed last.
        for _ in range(self.number(1, 8)):
            kind = self.number(0, 13 if depth < 2 else 5)
            room = self.buffers < MOST_BUFFERS
            if room and (kind == 0 or not own):
                name = self._allocate(pad)
                steps.append(self._set(name, pad))
                own.append(name)
            elif kind <= 1 and len(known + own) > 1:
                target = self._pick(own or known)
                source = self._pick([n for n in known + own if n != target])
                steps.append(self._mix(target, source, pad))
            elif kind <= 2 and known + own:
                steps.append(self._out(self._pick(known + own), pad))
            elif kind == 3:
                steps.append(self._set_register(self.number(0, REGISTERS - 1), pad))
            elif kind in (4, 12) and room:
                copied.append(self._allocate(pad))
                steps.append(self._copy(copied[-1], pad))
            elif kind in (5, 13) and copied:
                left = self.number(0, len(copied) - 1)
                self._wait(left, pad)
                arrived, copied = copied[: len(copied) - left], copied[len(copied) - left :]
                own += [name for name in arrived if self.number(0, 1)]  # Others are never read.
            elif kind == 6:
                rounds = self.number(1, 3)
                self.lines.append(f"{pad}for i{len(self.lines)} in range({rounds}):")
                steps.append(("loop", rounds, self.steps(known + own, depth + 1)))
            elif kind == 7:
                self.lines.append(f"{pad}for i{len(self.lines)} in range(n[0]):")
                steps.append(("rounds", self.steps(known + own, depth + 1)))
            elif kind == 8 and own:
                steps.append(self._some(self._pick(own), pad))
            elif kind == 9:
                least = self.number(0, 1)
                self.lines.append(f"{pad}if T.tvm_thread_invariant(n[0] > {least}):")
                steps.append(("if", least, self.steps(known + own, depth + 1)))
            elif kind in (10, 11) and self.buffers + 1 < MOST_BUFFERS:
                register = self.number(0, REGISTERS - 1)
                steps += [self._set_register(register, pad), self._arms(register, pad)]
        if copied:
            self._wait(0, pad)
        self.lines.append(f"{pad}T.evaluate(0)")
        return steps

    def _pick(self, names: list[str]) -> str:
        return names[self.number(0, len(names) - 1)]

    def _allocate(self, pad: str, dtype: str = "float32") -> str:
        name, self.buffers = f"s{self.buffers}", self.buffers + 1
        scope = ("shared", "shared", "shared.dyn")[self.number(0, 2)]
        self.lines.append(f'{pad}{name} = T.alloc_buffer((8,), "{dtype}", scope="{scope}")')
        return name

    def _barrier(self, pad: str) -> None:
        for scope in ("shared", "shared.dyn"):
            self.lines.append(f'{pad}T.tvm_storage_sync("{scope}")')

    def _set(self, name: str, pad: str) -> tuple[Any, ...]:
        at = self.number(0, 7)
        self.lines.append(f"{pad}{name}[tx] = x[(tx + {at}) % 8]")
        return "set", name, at

    def _copy(self, name: str, pad: str) -> tuple[Any, ...]:
        at = self.number(0, 7)
        self._barrier(pad)  # A round before may still read.
        copy = f'"tirx.s_tir.cp_async_raw", {name}.data, tx, x.data, (tx + {at}) % 8, 4'
        self.lines.append(f'{pad}T.evaluate(T.call_intrin("float32", {copy}))')
        self.lines.append(
            f'{pad}T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_commit_group"))'
        )
        return "set", name, at

    def _wait(self, left: int, pad: str) -> None:
        self.lines.append(
            f'{pad}T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_wait_group", {left}))'
        )
        self._barrier(pad)

    def _set_register(self, register: int, pad: str) -> tuple[Any, ...]:
        """Give a register a value: the same for all threads, or not; at once, or in some rounds."""
        how, at = self.number(0, 3), self.number(0, 3)
        value = ("n[0]", f"(tx + {at}) % 4", f"r[{register}] + 1", f"r[{register}] + 1")[how]
        head = ("", "", f"for i{len(self.lines)} in range((tx + {at}) % 3):", f"if tx > {at}:")[how]
        inner = f"{pad}    " if head else pad
        self.lines += [f"{pad}{head}"] if head else []
        self.lines.append(f"{inner}r[{register}] = {value}")
        return "register", register, how, at

    def _arms(self, register: int, pad: str) -> tuple[Any, ...]:
        """Take an arm by a register; each has a buffer of its own, and no thread meets another."""
        least, facts = self.number(0, 1), []
        # Elements of two widths: at equal indices, threads of the two arms have other bytes.
        for head, dtype in ((f"if r[{register}] > {least}:", "float32"), ("else:", "float64")):
            self.lines.append(f"{pad}{head}")
            name, at = self._allocate(f"{pad}    ", dtype), self.number(0, 7)
            slot, self.slots = self.slots, self.slots + 1
            place = f"o[{slot * 8} + tx]"
            self.lines.append(f'{pad}    {name}[tx] = T.Cast("{dtype}", x[(tx + {at}) % 8])')
            self.lines.append(f'{pad}    {place} = {place} + T.Cast("float32", {name}[tx])')
            facts += [at, slot]
        return "arms", register, least, *facts

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
    registers = np.zeros((REGISTERS, THREADS), "int32")

    def set_register(register: int, how: int, at: int) -> None:
        if how == 0:
            registers[register] = n
        elif how == 1:
            registers[register] = (threads + at) % 4
        else:
            registers[register] += (threads + at) % 3 if how == 2 else threads > at

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
            elif kind == "register":
                set_register(*facts)
            elif kind == "arms":
                register, least, at, slot, other_at, other_slot = facts
                taken = registers[register] > least
                for chosen, by, to in ((taken, at, slot), (~taken, other_at, other_slot)):
                    o[to * 8 : to * 8 + 8][chosen] += x[(threads + by) % 8][chosen]
            elif kind == "mix":
                target, source, factor, at = facts
                values[target] = values[target] * 0.5 + values[source][(threads * factor + at) % 8]
            else:
                source, slot, at = facts
                o[slot * 8 : slot * 8 + 8] += values[source][(threads + at) % 8]

    run(steps)


@dataclass(frozen=True)
class Drawn:
    """A random kernel, what numpy does in its place, and how many rows of results it has."""

    func: Any
    steps: list[tuple[Any, ...]]
    rows: int


def drawn(number: Number) -> Drawn:
    program = Program(number)
    steps = program.steps([], 0)
    rows = max(program.slots, 1)
    head = f"""
@T.prim_func(s_tir=True)
def main(
    x: T.Buffer((8,), "float32"), n: T.Buffer((1,), "int32"), o: T.Buffer(({rows * 8},), "float32")
):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 8)
    r = T.alloc_buffer(({REGISTERS},), "int32", scope="local")
    for i in range({REGISTERS}):
        r[i] = 0
"""
    return Drawn(tvm.script.from_source(head + "\n".join(program.lines)), steps, rows)


@st.composite
def kernels(draw: Any) -> Drawn:
    return drawn(lambda least, most: int(draw(st.integers(least, most))))


def arguments(kernel: Drawn, n: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the arguments by name, ``o`` the room for the result, and what is to be there."""
    x = np.random.default_rng(0).standard_normal(THREADS).astype("float32")
    expected = np.zeros(kernel.rows * THREADS, "float32")
    computed(kernel.steps, x, n, expected)
    return {"x": x, "n": np.array([n], "int32"), "o": np.zeros_like(expected)}, expected


def is_right_alone(kernel: Drawn, n: int) -> bool:
    """Whether a kernel runs with nothing shared.

    `ThreadSync` takes a barrier in a branch for one that threads always come by.
    """
    given, expected = arguments(kernel, n)
    try:
        alone = lowered(kernel.func, config={"tirx.disable_storage_rewrite": True})
        replay(alone, given, (1,), "backward")
    except FaultError:
        return False
    np.testing.assert_allclose(given["o"], expected, rtol=1e-4, atol=1e-5)
    return True


def replayed(kernel: Drawn, n: int, order: str, **options: Any) -> int:
    """Plan and replay a kernel; return its bytes. FaultError and AssertionError say what failed."""
    planned = lowered(kernel.func, partial(tvm_ext.use_plan_shared_memory, **options))
    given, expected = arguments(kernel, n)
    replay(planned, given, (1,), order)
    np.testing.assert_allclose(given["o"], expected, rtol=1e-4, atol=1e-5)
    return shared_bytes(planned)


@swept(4, 150, kernels(), st.integers(0, 2))
def test_random_kernels(kernel: Drawn, n: int):
    if not is_right_alone(kernel, n):
        reject()
    order = "backward" if n else "random"
    assert replayed(kernel, n, order, barriers="insert") <= replayed(kernel, n, order)
