# SPDX-License-Identifier: Apache-2.0
"""Random kernels of several phases: planned, and replayed as with nothing shared."""

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
from tvm.tirx import PrimFunc

import tvm_ext

THREADS, MOST_BUFFERS, REGISTERS = 8, 8, 2

Number = Callable[[int, int], int]
"""Draws a number between two, both included."""


@dataclass
class Program:
    """The text of a kernel."""

    number: Number
    lines: list[str] = field(default_factory=list)
    buffers: int = 0
    slots: int = 0

    def write(self, known: list[str], depth: int) -> None:
        """Write statements at a depth; `known` are the buffers with values."""
        pad = "    " * (depth + 1)
        own: list[str] = []
        copied: list[str] = []  # Each is a group of its own, the last one committed last.
        for _ in range(self.number(1, 8)):
            kind = self.number(0, 15 if depth < 2 else 5)
            room = self.buffers < MOST_BUFFERS
            if room and (kind == 0 or not own):
                own.append(self._allocate(pad))
                self._set(own[-1], pad)
            elif kind <= 1 and len(known + own) > 1:
                target = self._pick(own or known)
                self._mix(target, self._pick([n for n in known + own if n != target]), pad)
            elif kind <= 2 and known + own:
                self._out(self._pick(known + own), pad)
            elif kind == 3:
                self._set_register(self.number(0, REGISTERS - 1), pad)
            elif kind in (4, 12) and room:
                copied.append(self._allocate(pad))
                self._copy(copied[-1], pad)
            elif kind in (5, 13) and copied:
                left = self.number(0, len(copied) - 1)
                self._wait(left, pad)
                arrived, copied = copied[: len(copied) - left], copied[len(copied) - left :]
                own += [name for name in arrived if self.number(0, 1)]  # Others are never read.
            elif kind in (14, 15) and own and room:
                source = self._pick(own)
                own.append(self._allocate(pad))
                self._own(own[-1], source, pad)
                if self.number(0, 2):
                    own.remove(source)  # It is used no more.
            elif kind == 8 and own:
                self._some(self._pick(own), pad)
            elif kind in (6, 7, 9):
                head = {
                    6: f"for i{len(self.lines)} in range({self.number(1, 3)}):",
                    7: f"for i{len(self.lines)} in range(n[0]):",
                    9: f"if T.tvm_thread_invariant(n[0] > {self.number(0, 1)}):",
                }
                self.lines.append(f"{pad}{head[kind]}")
                self.write(known + own, depth + 1)
            elif kind in (10, 11) and self.buffers + 1 < MOST_BUFFERS:
                register = self.number(0, REGISTERS - 1)
                self._set_register(register, pad)
                self._arms(register, pad)
        if copied:
            self._wait(0, pad)
        self.lines.append(f"{pad}T.evaluate(0)")

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

    def _set(self, name: str, pad: str) -> None:
        self.lines.append(f"{pad}{name}[tx] = x[(tx + {self.number(0, 7)}) % 8]")

    def _copy(self, name: str, pad: str) -> None:
        at = self.number(0, 7)
        self._barrier(pad)  # A round before may still read.
        copy = f'"tirx.s_tir.cp_async_raw", {name}.data, tx, x.data, (tx + {at}) % 8, 4'
        self.lines.append(f'{pad}T.evaluate(T.call_intrin("float32", {copy}))')
        self.lines.append(
            f'{pad}T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_commit_group"))'
        )

    def _wait(self, left: int, pad: str) -> None:
        self.lines.append(
            f'{pad}T.evaluate(T.call_intrin("int32", "tirx.ptx.cp_async_wait_group", {left}))'
        )
        self._barrier(pad)

    def _set_register(self, register: int, pad: str) -> None:
        """Give a register a value: the same for all threads, or not; at once, or in some rounds."""
        how, at = self.number(0, 3), self.number(0, 3)
        value = ("n[0]", f"(tx + {at}) % 4", f"r[{register}] + 1", f"r[{register}] + 1")[how]
        head = ("", "", f"for i{len(self.lines)} in range((tx + {at}) % 3):", f"if tx > {at}:")[how]
        inner = f"{pad}    " if head else pad
        self.lines += [f"{pad}{head}"] if head else []
        self.lines.append(f"{inner}r[{register}] = {value}")

    def _arms(self, register: int, pad: str) -> None:
        """Take an arm by a register; each has a buffer of its own, and no thread meets another."""
        least = self.number(0, 1)
        # Elements of two widths: at equal indices, threads of the two arms have other bytes.
        for head, dtype in ((f"if r[{register}] > {least}:", "float32"), ("else:", "float64")):
            self.lines.append(f"{pad}{head}")
            name, at = self._allocate(f"{pad}    ", dtype), self.number(0, 7)
            slot, self.slots = self.slots, self.slots + 1
            place = f"o[{slot * 8} + tx]"
            self.lines.append(f'{pad}    {name}[tx] = T.Cast("{dtype}", x[(tx + {at}) % 8])')
            self.lines.append(f'{pad}    {place} = {place} + T.Cast("float32", {name}[tx])')

    def _own(self, target: str, source: str, pad: str) -> None:
        """Make elements of others at the same places: each thread's own, or another one's."""
        factor, at, other = 2 * self.number(0, 3) + 1, self.number(0, 7), self.number(0, 5)
        index = f"(tx * {factor} + {at}) % 8"
        read = f"(tx + {at}) % 8" if other == 0 else index
        how = self.number(0, 3)
        if how == 0:
            lines = [f"if tx < {at}:", f"    {target}[{index}] = {source}[{read}]"]
            lines += ["else:", f"    {target}[{index}] = {source}[{read}] * T.float32(3)"]
        elif how == 1:
            lines = [f"{target}[{index}] = x[tx]"]
            loop = f"for i{len(self.lines)} in range({self.number(1, 2)}):"
            lines += [loop, f"    {target}[{index}] = {target}[{index}] + {source}[{read}]"]
        else:
            lines = [f"{target}[{index}] = {source}[{read}] * T.float32(2)"]
        self.lines += [f"{pad}{line}" for line in lines]

    def _some(self, name: str, pad: str) -> None:
        self.lines.append(f"{pad}if tx < {self.number(1, 7)}:")
        self._set(name, f"{pad}    ")

    def _mix(self, target: str, source: str, pad: str) -> None:
        factor, at = 2 * self.number(0, 3) + 1, self.number(0, 7)
        index = f"(tx * {factor} + {at}) % 8"
        self.lines.append(f"{pad}{target}[tx] = {target}[tx] * T.float32(0.5) + {source}[{index}]")

    def _out(self, source: str, pad: str) -> None:
        slot, self.slots = self.slots, self.slots + 1
        at = self.number(0, 7)
        index = f"{slot * 8} + tx"
        self.lines.append(f"{pad}o[{index}] = o[{index}] + {source}[(tx + {at}) % 8]")


def drawn(number: Number) -> PrimFunc:
    program = Program(number)
    program.write([], 0)
    head = f"""
@T.prim_func(s_tir=True)
def main(
    x: T.Buffer((8,), "float32"), n: T.Buffer((1,), "int32"),
    o: T.Buffer(({max(program.slots, 1) * 8},), "float32"),
):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 8)
    r = T.alloc_buffer(({REGISTERS},), "int32", scope="local")
    for i in range({REGISTERS}):
        r[i] = 0
"""
    return tvm.script.from_source(head + "\n".join(program.lines))


@st.composite
def kernels(draw: Any) -> PrimFunc:
    return drawn(lambda least, most: int(draw(st.integers(least, most))))


def result(kernel: PrimFunc, func: PrimFunc, n: int, order: str) -> np.ndarray:
    """Replay a kernel of a function; FaultError says which threads meet in a byte."""
    x = np.random.default_rng(0).standard_normal(THREADS).astype("float32")
    out = np.zeros(int(func.params[2].ty.shape[0]), "float32")
    replay(kernel, {"x": x, "n": np.array([n], "int32"), "o": out}, (1,), order)
    return out


@swept(4, 150, kernels(), st.integers(0, 2))
def test_random_kernels(func: PrimFunc, n: int):
    alone = lowered(func, config={"tirx.disable_storage_rewrite": True})
    try:
        expected = result(alone, func, n, "backward")
    except FaultError:
        reject()  # `ThreadSync` takes a barrier in a branch for one that threads always come by.
    taken = []
    for barriers in ("insert", "existing"):
        planned = lowered(func, partial(tvm_ext.use, "PlanSharedMemory", barriers=barriers))
        found = result(planned, func, n, "backward" if n else "random")
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        taken.append(shared_bytes(planned))
    assert taken[0] <= taken[1]
