# SPDX-License-Identifier: Apache-2.0
"""What `AscendPlanMemory` refuses, and how it says so."""

from __future__ import annotations

import pytest
import tvm
from ascend_modules import (
    SEARCHES,
    TWIN,
    WORKSPACE,
    addresses,
    chip,
    message,
    module,
    planned,
    uses_scope,
)
from program_text import program
from tvm import tirx
from tvm.target import Target

from tvm_ext.transform import AscendPlanMemory


def test_a_scope_that_the_target_does_not_have():
    text = message(uses_scope("local.UBX"))
    assert text.startswith("buffer 'a': scope 'local.UBX' is not in the memory of the target")
    assert "local.UB, local.L1" in text


def test_a_target_without_memory():
    with pytest.raises(ValueError, match=r"scope 'local\.UB' is not .* which describes none"):
        AscendPlanMemory()(module(uses_scope("local.UB"), "llvm"))


@pytest.mark.parametrize("mode", ["local-mem-plan", WORKSPACE])
def test_a_buffer_that_is_read_before_it_is_written(mode: str):
    scope = "global.workspace" if mode == WORKSPACE else "local.L1"
    text = message(uses_scope(scope, reads_first=True), mode=mode)
    assert text == f"buffer 'a' in {scope}: error: read before first write"


def test_each_mode_refuses_what_it_plans_alone():
    in_workspace = uses_scope("global.workspace", reads_first=True)
    on_chip = uses_scope("local.UB", reads_first=True)
    assert planned(in_workspace) == planned(on_chip, mode=WORKSPACE) == {}
    of_any_size = uses_scope("global.workspace", size="n")
    assert addresses(AscendPlanMemory(target=TWIN)(tvm.IRModule({"main": of_any_size}))) == {}


def test_what_is_preloaded_was_written_an_iteration_before():
    preloaded = {"preload_local_buffer": True}
    func = uses_scope("local.UB", annotations=preloaded, reads_first=True, looped=True)
    assert planned(func) == {"a": (0,)}


def test_registers_and_what_is_not_used_are_no_matter_of_a_plan():
    func = program("""
        def func(x: 64, y: 64, n: T.int32):
            unused = T.alloc_buffer((n,), "float32", scope="local.UB")
            a: local.UB 64
            r: local 1
            r[0] = x[0]
            a[i] = x[i] + r[0] for i in range(64)
            y[i] = a[i] for i in range(64)
    """).with_attr("target", Target(TWIN))
    assert addresses(AscendPlanMemory()(tvm.IRModule({"main": func}))) == {"a": (0,)}


def test_a_symbolic_size():
    func = uses_scope("local.UB", size="n").with_attr("target", Target(TWIN))
    with pytest.raises(ValueError, match=r"buffer 'a' in local\.UB: its size rests on n"):
        AscendPlanMemory()(tvm.IRModule({"main": func}))


def test_a_symbolic_size_with_a_bound_of_its_own_or_of_the_function_is_planned():
    # TVM's own lowering cuts the buffer down to what is used: the lesser of n and 64.
    func = uses_scope("local.UB", size="n")
    assert planned(func) == {"a": (0,)}
    assert planned(func.with_attr("tir_var_upper_bound", {"n": 64})) == {"a": (0,)}


def test_a_workspace_of_each_parallel_iteration():
    func = uses_scope("global.workspace", looped=True)
    body = func.body
    loop = tirx.For(body.loop_var, body.min, body.extent, tirx.ForKind.PARALLEL, body.body)
    text = message(func.with_body(loop), mode=WORKSPACE, form="arena")
    assert "each iteration of the parallel loop around it needs its own" in text
    assert "allocate it outside of that loop, with a part for each iteration" in text
    text = message(func.with_body(loop), mode=WORKSPACE, form="address")
    assert text.startswith("buffer 'a' in global.workspace: each iteration or thread has its own")


@pytest.mark.parametrize("search", SEARCHES)
def test_what_is_proven_rests_on_live_ranges(search: str):
    # The same program with a buffer for each of two values fits.
    def phases(again: str) -> tirx.PrimFunc:
        return program(f"""
        def main(x: 64, y: 64):
            t, u, v: local.UB 64
            t[i] = x[i] for i in range(64)
            y[i] = t[63 - i] for i in range(64)
            u[i] = x[63 - i] + y[i] for i in range(64)
            y[i] = u[63 - i] for i in range(64)
            {again}[i] = y[i] * x[63 - i] for i in range(64)
            y[i] = {again}[63 - i] for i in range(64)
        """)

    assert set(planned(phases("v"), search=search, target=chip(UB=256)).values()) == {(0,)}
    text = message(phases("t"), search=search, target=chip(UB=256))
    assert "it is proven that no plan fits with these live ranges" in text


@pytest.mark.parametrize("search", SEARCHES)
def test_overflow_says_what_the_original_says_and_more(search: str):
    text = message(uses_scope("local.UB"), search=search, target=chip(UB=128))
    planner = "three_level" if search == "search" else "three_level_mirror"
    assert text.splitlines() == [
        "ub overflow, requires 2048 bits while 1024 bits available! (possible reason: tiling basic "
        "block is too large or block number is more than what user expect due to multi-buffer "
        "feature is enabled and some ops need extra local buffer.)",
        f"  scope 'local.UB' needs 256 bytes as planned by {planner!r}, and has 128",
        "  most is live at line 6 (for i in range(64):), 256 bytes:",
        "    a: 256 bytes, live on lines 6 to 9",
        "  no plan needs less than 256 bytes where only what the instruction set allows is in "
        "place; it is proven that no plan fits with these live ranges",
        "  it fits with smaller tiles, every buffer at most 1/2 of its bytes: planned in 128 bytes",
        "  lines are those of the function's script, as it is planned, without target",
    ]


@pytest.mark.parametrize(
    ("scope", "printed"), [("L1", "cbuf"), ("L0C", "cc"), ("L0A", "ca"), ("L0B", "cb")]
)
def test_overflow_prints_scopes_as_the_original_does(scope: str, printed: str):
    text = message(uses_scope(f"local.{scope}"), target=chip(**{scope: 64}))
    assert text.startswith(f"{printed} overflow, requires 2048 bits while 512 bits available!")


@pytest.mark.parametrize("search", SEARCHES)
def test_bits_of_an_overflow_are_those_of_whole_units(search: str):
    func = uses_scope("local.UB", size=60001).with_attr("target", Target(TWIN))
    with pytest.raises(ValueError, match="ub overflow, requires 1920256 bits while 1572864 bits"):
        AscendPlanMemory(search=search)(tvm.IRModule({"main": func}))
