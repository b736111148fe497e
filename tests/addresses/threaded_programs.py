# SPDX-License-Identifier: Apache-2.0
"""Random kernels of several threads on shared memory, in which no thread races as they stand.

One buffer after another is filled and read, each element by whichever thread. Between filling and
reading stands a barrier, written out or left to TVM's `ThreadSync` where that places it. None
stands between the last read of one buffer and the first write of the next, so that any two that
share bytes may race.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import tvm
from hypothesis import strategies as st
from tvm import s_tir

THREADS = 8
TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_80"}, host="llvm")

_BYTES = {"float32": 4, "int32": 4, "float16": 2, "int8": 1}
_SCOPES = ("shared", "shared", "shared.dyn", "shared.l1", "shared.UB")
_PLAIN = ("shared", "shared.dyn")


@dataclass(frozen=True)
class _Draw:
    random: Random

    def __call__(self) -> tvm.IRModule:
        scope = self.random.choice(_SCOPES)
        dtypes = self.random.sample(list(_BYTES), 2)
        names = [f"b{at}" for at in range(self.random.randint(2, 4))]
        lines = [line for n in names for line in self.buffer(n, scope, self.random.choice(dtypes))]
        text = "\n    ".join(lines)
        func = tvm.script.from_source(
            f"""
@T.prim_func(s_tir=True)
def main(x: T.Buffer((256,), "float32"), y: T.Buffer((256,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", {THREADS})
    {text}
"""
        ).with_attr({"global_symbol": "main", "target": TARGET})
        return tvm.IRModule({"main": func})

    def buffer(self, name: str, scope: str, dtype: str) -> list[str]:
        """Return what fills a buffer and reads it."""
        size = THREADS * self.random.choice((1, 1, 2))
        slot, barrier = self.index(size), "T.evaluate(T.tvm_storage_sync('shared'))"
        lines = [f"{name} = T.alloc_buffer(({size},), '{dtype}', scope='{scope}')"]
        seen, at = name, self.index(size)
        if self.random.random() < 0.4:
            other = self.random.choice(list(_BYTES))
            extent = size * _BYTES[dtype] // _BYTES[other]
            if extent >= THREADS:
                seen, at = f"v{name}", self.index(extent)
                lines.append(
                    f"{seen} = T.decl_buffer(({extent},), '{other}', data={name}.data, "
                    f"scope='{scope}')"
                )
        lines.append(f"{name}[{slot}] = T.Cast('{dtype}', x[tx])")
        is_handed_on = self.random.random() < 0.25
        # TVM sees these itself, and places the barrier.
        is_seen = scope in _PLAIN and seen == name and not is_handed_on
        if not is_seen or self.random.random() < 0.3:
            lines.append(barrier)
        if is_handed_on:
            pointer = self.random.choice((f"{name}.data", f"T.address_of({name}[0])"))
            size_in_bytes = size * _BYTES[dtype]
            lines.append(f"T.evaluate(T.call_extern('int32', 'reads', {pointer}, {size_in_bytes}))")
        else:
            lines.append(f"y[tx] = y[tx] + T.Cast('float32', {seen}[{at}])")
        return lines

    def index(self, size: int) -> str:
        choices = ["tx", f"{THREADS - 1} - tx"]
        if size > THREADS:
            choices += [f"tx + {size - THREADS}", "tx * 2"]
        return self.random.choice(choices)


def with_barriers(mod: tvm.IRModule) -> tvm.IRModule:
    """Let TVM place its barriers, as its pipeline does behind the planning of memory."""
    scopes = ("shared", "shared.dyn", "warp")
    return tvm.transform.Sequential([s_tir.transform.ThreadSync(scope) for scope in scopes])(mod)


def threaded_programs() -> st.SearchStrategy[tvm.IRModule]:
    """Kernels that Hypothesis can shrink."""
    return st.randoms(use_true_random=False).map(lambda random: _Draw(random)())


def threaded_program(seed: int) -> tvm.IRModule:
    """Draw a kernel from a seed."""
    return _Draw(Random(seed))()
