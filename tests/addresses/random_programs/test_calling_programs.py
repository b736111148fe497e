# SPDX-License-Identifier: Apache-2.0
"""Functions that call one another: what a caller still needs is at no address of a callee."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import address_runs
import numpy as np
import pytest
import tvm
from hypothesis import note
from hypothesis import strategies as st
from module_replay import ModuleReplay
from program_parts import call
from sweeps import swept
from tvm import tirx
from tvm.ir import GlobalVar, PrimType
from tvm.ir.expr import Call
from tvm.ir.transform import Pass, Sequential

from passes.addresses.transform import PlanAddresses
from passes.ascend.transform import WORKSPACE_BYTES, AscendPlanMemory
from passes.gmem.options import ATTRIBUTE
from passes.gmem.transform import GMEMAllocate
from passes.ir import find_accesses, find_linear_access, prim_funcs, structural_mutate
from passes.prim_func.module_calls import find_calls
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import with_memory
from tvm_ext.lowering import known_target

LENGTH = 8
SCOPES = ("local.UB", "local.UB", "shared.UB", "global.workspace")


class ModuleBuilder:
    """Draws functions that make buffers, call later functions with them, and add up what is left.

    Parameters
    ----------
    random : Random
        Where choices come from.
    scopes : sequence of str
        Where buffers live.
    """

    def __init__(self, random: Random, scopes: Sequence[str] = SCOPES) -> None:
        self.random = random
        self.scopes = scopes
        self.names = 0
        self.calls_left = 0

    def build(self) -> tvm.IRModule:
        # Names in any order, so that callers do not come first by name.
        names = self.random.sample(["a", "b", "c"], self.random.randint(1, 3))
        lines = self.function("main", names, is_main=True)
        for at, name in enumerate(names):
            lines += self.function(name, names[at + 1 :], is_main=False)
        text = "\n".join(["@I.ir_module", "class M:", *(f"    {line}" for line in lines)])
        return tvm.script.from_source(text)

    def function(self, name: str, callees: list[str], is_main: bool) -> list[str]:
        array = f'T.Buffer(({LENGTH},), "int32")'
        self.calls_left = 2
        private = "" if is_main or self.random.random() < 0.5 else ", private=True"
        header = [f"@T.prim_func(s_tir=True{private})"]
        if is_main:
            header.append(f"def main(source: {array}, result: {array}):")
        else:
            header.append(f"def {name}(p: T.handle, q: T.handle):")
            header += [
                f'    {view} = T.decl_buffer(({LENGTH},), "int32", data={pointer})'
                for view, pointer in (("source", "p"), ("result", "q"))
            ]
        return [*header, *(f"    {line}" for line in self.block(["source"], callees, 0))]

    def block(self, readable: list[str], callees: list[str], depth: int) -> list[str]:
        readable = list(readable)
        lines: list[str] = []
        for _ in range(self.random.randint(2, 4)):
            kind = self.random.random()
            if kind < 0.2 and depth < 1:
                inner = self.block(readable, callees, depth + 1)
                lines += [f"for k{self.name()} in range(2):", *(f"    {line}" for line in inner)]
                continue
            new = f"t{self.name()}"
            scope = self.random.choice(self.scopes)
            lines.append(f'{new} = T.alloc_buffer(({LENGTH},), "int32", scope="{scope}")')
            source = self.random.choice(readable)
            lines += self.fill(new, f"{source}[{LENGTH - 1} - i] + {self.random.randint(1, 9)}")
            if callees and self.calls_left:
                self.calls_left -= 1
                lines.append(self.call(self.random.choice(callees), source, new))
            readable.append(new)
        used = self.random.choice(readable)
        return lines + self.fill("result", f"result[i] * 3 + {used}[i]")

    def fill(self, buffer: str, value: str) -> list[str]:
        return [f"for i in range({LENGTH}):", f"    {buffer}[i] = {value}"]

    def call(self, callee: str, source: str, result: str) -> str:
        operands = f"{source}.data, {result}.data"
        return self.random.choice(
            (
                f"M.{callee}({operands})",
                f'T.evaluate(T.call_extern("int32", "{callee}", {operands}))',
                f'T.evaluate(T.call_packed("{callee}", {operands}))',
            )
        )

    def name(self) -> int:
        self.names += 1
        return self.names


def calling_modules() -> st.SearchStrategy[tvm.IRModule]:
    """Modules that Hypothesis can shrink."""
    return st.randoms(use_true_random=False).map(lambda random: ModuleBuilder(random).build())


ROOMY = with_memory(
    "ext_dev",
    MemoryHierarchy(
        tuple(MemoryScope(s, 4096, 32) for s in ("local.UB", "shared.UB", "global.workspace"))
    ),
)


def ascend(search: str, form: str = "address") -> Pass:
    modes = ("global-work-space-plan", "local-mem-plan")
    options: dict[str, Any] = {"search": search, "form": form, "target": ROOMY, "budget": 100}
    return Sequential(
        [AscendPlanMemory(m, enable_global_workspace_reuse=True, **options) for m in modes]
    )


PASSES = {
    "best": lambda: PlanAddresses(budget=100),
    "ascend": lambda: ascend("search"),
    "mirror": lambda: ascend("mirror"),
}


def replay(mod: tvm.IRModule) -> np.ndarray:
    source, result = np.arange(LENGTH, dtype="int32"), np.zeros(LENGTH, "int32")
    ModuleReplay(mod)([source, result])
    return result


@swept(2, 100, calling_modules())
def test_no_value_of_a_caller_is_overwritten(mod: tvm.IRModule):
    note(mod.script())
    expected = replay(mod)
    for name, make in PASSES.items():
        np.testing.assert_equal(replay(make()(mod)), expected, name)


SOURCE = """
@I.ir_module
class M:
    @T.prim_func(s_tir=True)
    def scratch(p: T.handle):
        v = T.decl_buffer((16,), "int32", data=p)
        t = T.alloc_buffer((16,), "int32", scope="SCOPE")
        for i in range(16):
            t[i] = v[i]
        for i in range(16):
            v[i] = t[15 - i]

    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((16,), "int32")):
        y = T.alloc_buffer((16,), "int32", scope="SCOPE")
        for i in range(16):
            y[i] = x[i]
        CALL
        for i in range(16):
            x[i] = y[i]
        LAST
"""


IN_PARALLEL = "for k in T.parallel(4):\n            M.scratch(x.data)"
IN_A_REGION = """with T.attr(0, "pragma_parallel_launch_point", 1):
            M.scratch(x.data)"""


def module(scope: str, call: str = "M.scratch(x.data)", at_end: bool = False) -> tvm.IRModule:
    calls = ("T.evaluate(0)", call) if at_end else (call, "T.evaluate(0)")
    text = SOURCE.replace("SCOPE", scope).replace("CALL", calls[0]).replace("LAST", calls[1])
    return tvm.script.from_source(text)


def addresses(mod: tvm.IRModule, name: str) -> list[int]:
    return [address for found in address_runs.addresses(mod[name]).values() for address in found]


def test_an_address_of_the_program_s_own_in_what_callers_hold_is_named():
    pinned = tirx.decl_buffer((16,), "int32", "pinned", scope="local.UB", layout=None)
    pinned = pinned.with_allocated_addr([0])
    body = tirx.SeqStmt([tirx.AllocBuffer(pinned), tirx.BufferStore(pinned, 1, [0])])
    mod = module("local.UB")
    mod["scratch"] = tirx.PrimFunc(mod["scratch"].params, body)
    held = r"'scratch': buffer 'pinned' in local.UB: .* 0 is for 64 bytes.* hold \[0, 64\)"
    with pytest.raises(ValueError, match=held):
        PlanAddresses()(mod)


def test_what_a_caller_is_done_with_is_free():
    mod = PlanAddresses()(module("local.UB", "M.scratch(x.data)", at_end=True))
    assert (addresses(mod, "main"), addresses(mod, "scratch")) == ([0], [0])


@pytest.mark.parametrize("call", [IN_PARALLEL, IN_A_REGION])
def test_memory_of_all_iterations_is_left_alone_in_a_function_that_they_call(call: str):
    mod = PlanAddresses()(module("global", call))
    assert (addresses(mod, "main"), addresses(mod, "scratch")) == ([0], [])
    mod = PlanAddresses()(module("local.UB", call))
    assert (addresses(mod, "main"), addresses(mod, "scratch")) == ([0], [64])


def test_a_callee_keeps_off_a_scope_in_which_a_buffer_of_unknown_size_has_an_address():
    text = SOURCE.replace("SCOPE", "local.UB").replace("LAST", "T.evaluate(0)") + IN_TURNS
    text = text.replace('main(x: T.Buffer((16,), "int32")', "main(x: T.handle, n: T.int32")
    given = 'x = T.match_buffer(y_, (16,), "int32")'
    text = text.replace("main(x: T.handle", "main(y_: T.handle")
    pinned = f'{given}\n        y = T.alloc_buffer((n,), "int32", allocated_addr=[0],'
    text = text.replace('y = T.alloc_buffer((16,), "int32",', pinned)
    for way in ("M.scratch(x.data)", 'T.call_extern("int32", "even", x.data, 3)'):
        planned = PlanAddresses()(tvm.script.from_source(text.replace("CALL", way)))
        assert (addresses(planned, "main"), addresses(planned, "scratch")) == ([0], [])


def test_a_name_may_be_that_of_one_function_and_the_symbol_of_another():
    mod = module("local.UB", 'T.call_extern("int32", "other", x.data)')
    other = mod["scratch"].with_body(tirx.Evaluate(0))
    mod[GlobalVar("other")] = other.with_attr("global_symbol", "third")
    mod["scratch"] = mod["scratch"].with_attr("global_symbol", "other")
    planned = PlanAddresses()(mod)
    assert (addresses(planned, "main"), addresses(planned, "scratch")) == ([0], [64])


def test_a_function_that_calls_itself_has_no_addresses():
    mod = module("local.UB", "M.main(x.data)")
    assert addresses(PlanAddresses()(mod), "main") == []
    with pytest.raises(ValueError, match=r"function 'main'.*'y' in local.UB.* called again"):
        ascend("search")(mod)


def test_a_function_that_takes_and_returns_numbers_is_called_too():
    mod = module("local.UB", 'x[0] = T.call_extern("int32", "scratch", 3)')
    number = Call(mod.get_global_var("scratch"), [3], ret_ty=PrimType("int32"))
    mod["main"] = structural_mutate(mod["main"], [(Call, lambda _op, _mutator: number)])
    planned = PlanAddresses()(mod)
    assert (addresses(planned, "main"), addresses(planned, "scratch")) == ([0], [64])


IN_TURNS = """
    @T.prim_func(s_tir=True)
    def even(x: T.Buffer((16,), "int32"), n: T.int32):
        if n > 0:
            T.call_extern("int32", "odd", x.data, n - 1)

    @T.prim_func(s_tir=True)
    def odd(x: T.Buffer((16,), "int32"), n: T.int32):
        if n > 0:
            T.call_extern("int32", "even", x.data, n - 1)
        M.scratch(x.data)
"""


@pytest.mark.parametrize("first", ["even", "odd"])
def test_what_is_held_is_known_behind_functions_that_call_one_another(first: str):
    text = SOURCE.replace("SCOPE", "local.UB").replace("LAST", "T.evaluate(0)") + IN_TURNS
    mod = tvm.script.from_source(
        text.replace("CALL", f'T.call_extern("int32", "{first}", x.data, 3)')
    )
    for planned in (PlanAddresses()(mod), ascend("search")(mod)):
        assert (addresses(planned, "main"), addresses(planned, "scratch")) == ([0], [64])


@pytest.mark.parametrize(("form", "needed"), [("address", 128), ("arena", 128)])
def test_a_workspace_holds_what_callees_need(form: str, needed: int):
    mod = ascend("search", form)(module("global.workspace"))
    assert int(mod["scratch"].attrs[WORKSPACE_BYTES]) == (128 if form == "address" else 64)
    assert int(mod["main"].attrs[WORKSPACE_BYTES]) == needed


def test_global_memory_of_a_graph_begins_behind_its_caller():
    mod = GMEMAllocate()(module("global"))
    regions = {name: mod[name].attrs[ATTRIBUTE]["activations"] for name in ("main", "scratch")}
    assert [int(regions[name]["start"]) for name in ("main", "scratch")] == [0, 64]
    calls_even = 'T.call_extern("int32", "even", x.data, 3)'
    turns = SOURCE.replace("SCOPE", "global").replace("LAST", "T.evaluate(0)") + IN_TURNS
    again = 'T.call_extern("int32", "even", x.data, n - 1)'
    for text in (
        turns.replace("CALL", IN_PARALLEL),
        turns.replace("CALL", IN_PARALLEL.replace("M.scratch(x.data)", calls_even)),
        turns.replace("CALL", calls_even).replace(again, f"for k in T.parallel(4): {again}"),
    ):
        in_parallel = GMEMAllocate()(tvm.script.from_source(text))
        assert ATTRIBUTE in in_parallel["main"].attrs
        assert ATTRIBUTE not in (in_parallel["scratch"].attrs or {})


def test_functions_of_other_devices_have_other_memories():
    mod = module("global")
    for name, target in (("main", "llvm"), ("scratch", "cuda")):
        bound = mod[name].with_attr("target", known_target(target))
        mod[mod.get_global_var(name)] = bound
    assert addresses(PlanAddresses()(mod), "scratch") == [0]


def test_what_callers_hold_above_the_memory_of_a_function_takes_none_of_it():
    small = with_memory("llvm", MemoryHierarchy((MemoryScope("local.UB", 96, 32),)))
    for at in (64, 128):
        pinned = f'y = T.alloc_buffer((16,), "int32", allocated_addr=[{at}],'
        text = SOURCE.replace('y = T.alloc_buffer((16,), "int32",', pinned)
        text = text.replace("SCOPE", "local.UB").replace("LAST", "T.evaluate(0)")
        mod = tvm.script.from_source(text.replace("CALL", "M.scratch(x.data)"))
        mod[mod.get_global_var("scratch")] = mod["scratch"].with_attr("target", small)
        assert addresses(PlanAddresses()(mod), "scratch") == [0]


KEPT = tirx.decl_buffer((1,), "int64", "kept", layout=None)


@pytest.mark.parametrize(
    "going_on", [call("tirx.dma_copy", 0), tirx.reinterpret("int64", KEPT.data)]
)
@pytest.mark.parametrize("way", ["M.scratch({})", 'T.call_extern("int32", "scratch", {})'])
def test_what_goes_on_in_a_callee_lasts_in_its_caller(going_on: Any, way: str):
    mod = module("local.UB", way.format("y.data"))
    scratch, number = mod["scratch"], tirx.reinterpret("float64", tirx.const(1, "int64"))
    for added, found in ((number, set()), (going_on, {"main", "scratch"})):
        body = tirx.SeqStmt([scratch.body, tirx.Evaluate(added)])
        mod[mod.get_global_var("scratch")] = scratch.with_body(body)
        lasting = find_calls(prim_funcs(mod)).lasting
        assert lasting == found
    for last, escapes in ((frozenset(), False), (frozenset({"f"}), False), (lasting, True)):
        (uses,) = find_accesses(find_linear_access(mod["main"]), last).of
        assert uses.escapes == escapes
