# SPDX-License-Identifier: Apache-2.0
"""Random kernels of several threads: no plan lets threads race that do not race without it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
import tvm
from address_runs import identity, memory_after
from block_replay import races
from hypothesis import note
from hypothesis import strategies as st
from program_text import program
from sweeps import swept
from tvm import s_tir, tirx
from tvm.ir.transform import Pass, PassContext

from passes.addresses.transform import PlanAddresses
from passes.ascend.kernel import AscendOptions
from passes.ascend.transform import ascend_plan_function
from passes.planning import Budget
from passes.planning.buffer import live_together
from passes.prim_func.module_calls import Callers
from passes.prim_func.problems import find_problems
from passes.storage_rewrite.transform import StorageRewrite
from target_hw.memory import MemoryHierarchy, MemoryScope

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


SCOPES = ("shared", "shared.dyn", "shared.l1", "shared.UB")
SMALL = MemoryHierarchy(tuple(MemoryScope(name, capacity=80) for name in SCOPES))


def ascend() -> Pass:
    """`AscendPlanMemory` in a memory that is too small for most: a plan that fits shares."""

    options = AscendOptions(memory=SMALL, budget=Budget(200))

    def transform(func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: PassContext) -> tirx.PrimFunc:
        try:
            return ascend_plan_function("main", func, Callers(), options)[0]
        except ValueError:
            return func

    return tirx.transform.prim_func_pass(transform, opt_level=0, name="ascend")


PASSES = {
    "ascend": ascend,
    "address": lambda: PlanAddresses("best", "address"),
    "arena": lambda: PlanAddresses("best", "arena"),
    "sound": lambda: StorageRewrite(sound=True),
}


def races_under(mod: tvm.IRModule, name: str) -> bool:
    return races(with_barriers(PASSES[name]()(mod))["main"])


@swept(15, 1500, threaded_programs())
def test_no_thread_overwrites_what_another_has_still_to_read(mod: tvm.IRModule):
    note(mod.script())
    assert not races(with_barriers(mod)["main"])
    for name in PASSES:
        assert not races_under(mod, name), name


@pytest.mark.parametrize(
    ("launched", "scope"), [("blockIdx.x", "shared.UB"), ("threadIdx.x", "local.UB")]
)
def test_memory_that_one_thread_sees_is_reused(launched: str, scope: str):
    func = program(f"""
    def main(x: 8, y: 8):
        T.launch_thread("{launched}", 4)
        a, b: {scope} 8
        a[i] = x[i] for i in range(8)
        y[i] = a[7 - i] for i in range(8)
        b[i] = x[7 - i] for i in range(8)
        y[i] = y[i] + b[7 - i] for i in range(8)
    """)
    mod = tvm.IRModule({"main": func})
    assert PlanAddresses()(mod).script().count("allocated_addr=0)") == 2
    assert "data=a.data" in StorageRewrite(sound=True)(mod).script()


region = program("""
def region(x: 512, y: 512):
    first, second: local.UB 512
    with T.attr(T.int32(0), "pragma_parallel_launch_point", 1):
        own: local.UB 64
        for p in T.parallel(8):
            own[i] = x[p * 64 + i] for i in range(64)
            first[p * 64 + i] = own[63 - i] for i in range(64)
            y[p * 64 + i] = first[p * 64 + 63 - i] for i in range(64)
        for p in T.parallel(8):
            second[p * 64 + i] = x[p * 64 + i] for i in range(64)
            y[p * 64 + i] = y[p * 64 + i] + second[p * 64 + 63 - i] for i in range(64)
""")


@pytest.mark.parametrize("name", ["arena", "sound"])
def test_what_all_threads_of_a_cpu_run_makes_memory_for_each(name: str):
    mod = tvm.IRModule({"main": region.with_attr("global_symbol", "main")})
    text = PASSES[name]()(mod)["main"].script()
    assert text.index("pragma_parallel") < text.index("own = T.alloc_buffer")
    assert memory_after(mod, PASSES[name]()) == memory_after(mod, identity())


def test_a_loop_around_threads_takes_turns_with_slots_of_each():
    func = program("""
    def main(x: 512, y: 512):
        for t in range(3):
            tx = T.launch_thread("threadIdx.x", 8)
            a = T.alloc_buffer(
                (64,), "float32", scope="local.UB", annotations={"multi_buffer": 2}
            )
            b: local.UB 64
            a[i] = x[tx * 64 + i] for i in range(64)
            b[i] = a[63 - i] for i in range(64)
            y[tx * 64 + i] = a[i] + b[i] for i in range(64)
    """)
    planned = PASSES["arena"]()(tvm.IRModule({"main": func}))["main"]
    text = planned.script()
    assert text.index("launch_thread") < text.index("offsets = ") < text.index("offset: T.let")
    assert tirx.analysis.verify_well_formed(planned)


def test_nothing_orders_what_these_threads_do():
    (attached,) = find_problems(region).problems
    first, second = attached.problem.buffers
    assert live_together(first.live, second.live)
    assert not attached.problem.in_place


SHARING = """
def main(x: 16, y: 16) on 1 x 8:
    a: {scope} 8
    a[tx] = x[tx]
    T.evaluate(T.tvm_storage_sync("shared"))
    {use}
    b: {scope} 8
    b[tx] = x[tx + 8]
    T.evaluate(T.tvm_storage_sync("shared"))
    y[tx] = y[tx] + b[7 - tx]
"""
READ = "y[tx] = a[7 - tx]"
VIEW = """v = T.decl_buffer((32,), "int8", data=a.data, scope="shared")
    y[tx] = T.Cast("float32", v[tx])"""
UNSEEN = {
    "in a scope without barriers": ("shared.l1", READ),
    "elements of another width": ("shared", VIEW),
    "an address": ("shared", "T.evaluate(T.call_extern('int32', 'reads', a.data, 32))"),
}


def sharing(case: tuple[str, str]) -> tvm.IRModule:
    func = program(SHARING.format(scope=case[0], use=case[1]))
    return tvm.IRModule({"main": func.with_attr({"global_symbol": "main", "target": TARGET})})


@pytest.mark.parametrize("case", UNSEEN.values(), ids=UNSEEN)
def test_what_no_barrier_would_part_keeps_its_memory(case: tuple[str, str]):
    assert not races_under(sharing(case), "sound")


def test_barriers_part_loads_and_stores():
    mod = sharing(("shared", READ))
    assert PASSES["sound"]()(mod).script().count("alloc_shared(") == 1
    assert not races_under(mod, "sound")


def test_what_a_call_writes_as_its_operand_keeps_its_memory():
    use = "T.evaluate(T.tvm_thread_allreduce(T.uint32(1), x[tx], True, a[tx], tx))"
    text = PASSES["sound"]()(sharing(("shared", use))).script()
    assert text.count("alloc_shared(") == 2
