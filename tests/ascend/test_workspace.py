# SPDX-License-Identifier: Apache-2.0
"""Plans for the workspace in global memory, and what goes through it."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from ascend_modules import SEARCHES, TWIN, WORKSPACE, addresses, module, uses_scope
from llvm_level import at_level
from program_text import program
from tvm import tirx
from tvm.target import Target

import tvm_ext.pipeline
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.target import with_memory
from tvm_ext.transform import WORKSPACE_BYTES, AscendPlanMemory

MEMORY = MemoryHierarchy.from_target(Target("ascend/910b"))

through_workspace = program("""
def through_workspace(x: 512, y: 512):
    for t in range(4):
        first: global.workspace 25 float32 {"multi_buffer": 2}
        second, third: global.workspace 25
        a, b: local.UB 25
        a[i] = x[t * 25 + i] for i in range(25)
        first[i] = a[i] for i in range(25)
        b[i] = first[24 - i] for i in range(25)
        second[i] = b[i] for i in range(25)
        third[i] = second[i] for i in range(25)
        y[t * 25 + i] = third[i] for i in range(25)
""")


def workspace(**options) -> tuple[int, dict[str, tuple[int, ...]]]:
    mod = AscendPlanMemory(WORKSPACE, **options)(module(through_workspace))
    return int(mod["main"].attrs[WORKSPACE_BYTES]), addresses(mod)


@pytest.mark.parametrize("search", SEARCHES)
def test_a_workspace_is_a_running_sum(search: str):
    # 100 bytes each, on multiples of 32; further slots come after all first ones. The size is the
    # end of the last one, as the original counts it.
    assert workspace(search=search) == (484, {"first": (0, 384), "second": (128,), "third": (256,)})


@pytest.mark.parametrize("search", SEARCHES)
def test_a_workspace_is_planned_by_life_where_that_is_asked_for(search: str):
    size, found = workspace(search=search, enable_global_workspace_reuse=True)
    assert size == 228
    # No result takes an operand's place there, so second and third are apart.
    assert found["second"] != found["third"]
    assert set(found["first"]) == {0, 128}


@pytest.mark.parametrize("search", SEARCHES)
def test_what_is_unique_shares_no_workspace(search: str):
    func = program("""
    def main(x: 64, y: 64):
        first: global.workspace 64 float32 {"mem_unique": True}
        second, third, fourth: global.workspace 64
        first[i] = x[i] for i in range(64)
        second[i] = first[63 - i] for i in range(64)
        third[i] = second[63 - i] for i in range(64)
        fourth[i] = third[63 - i] for i in range(64)
        y[i] = fourth[i] for i in range(64)
    """)
    plan = AscendPlanMemory(WORKSPACE, enable_global_workspace_reuse=True, search=search)
    found = addresses(plan(module(func)))
    assert found["second"] == found["fourth"]
    assert len({found[name] for name in ("first", "second", "third")}) == 3


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(("reuse", "needs"), [(False, 484), (True, 228)])
def test_a_workspace_of_a_capacity_has_to_fit(search: str, reuse: bool, needs: int):
    def of_bytes(capacity: int):
        scopes = [scope for scope in MEMORY if scope.name != "global.workspace"]
        memory = MemoryHierarchy((*scopes, MemoryScope("global.workspace", capacity, 32)))
        target = with_memory(TWIN, memory)
        return workspace(search=search, enable_global_workspace_reuse=reuse, target=target)

    assert of_bytes(needs)[0] == needs
    with pytest.raises(ValueError, match=f"global.workspace.* {needs} bytes"):
        of_bytes(needs - 1)


def test_a_function_without_a_workspace_needs_none():
    mod = AscendPlanMemory(WORKSPACE)(module(uses_scope("local.UB")))
    assert int(mod["main"].attrs[WORKSPACE_BYTES]) == 0
    assert addresses(mod) == {}


@pytest.mark.parametrize(("form", "reuse"), [("address", False), ("arena", True)])
def test_what_goes_through_a_workspace_arrives(form: str, reuse: bool):
    x = np.arange(512, dtype="float32")
    y = tvm.runtime.tensor(np.zeros(512, "float32"))
    options = {"form": form, "enable_global_workspace_reuse": reuse}
    with tvm_ext.use("AscendPlanMemory", **options):
        build_of = tirx.build(tvm.IRModule({"main": through_workspace}), at_level(TWIN))
    build_of["main"](tvm.runtime.tensor(x), y)
    expected = np.zeros(512, "float32")
    expected[:100] = x[:100].reshape(4, 25)[:, ::-1].reshape(-1)
    np.testing.assert_array_equal(y.numpy(), expected)
