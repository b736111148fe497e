# SPDX-License-Identifier: Apache-2.0
"""Modules that are served: never more memory than under the stock plan, and the same numbers."""

from __future__ import annotations

from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_memory import IdleMachine, allocations_in, functions_of, watch
from paged_llama import Shape, bounds_of, module_of
from relax_programs import SERVED, ServedProgram, parse, served_programs
from relax_runs import KEPT, STOCK, Machine, build_each, flat, lower, planned, under_each
from tvm import relax

from passes.gmem import GMEMOptions, plan_gmem, served_memory
from tvm_ext.transform import GMEMAllocate

PLANS_RESULTS = "relax.memory_plan_dynamic_func_output"


def stored(mod: tvm.IRModule, name: str) -> int:
    """Return the bytes of constant size that a function allocates, as MLC-LLM adds them up."""
    return sum(
        width * prod(map(int, extents))
        for width, extents in allocations_in(mod[name])
        if all(isinstance(extent, tvm.tirx.IntImm) for extent in extents)
    )


def check_bounded(lowered: tvm.IRModule, sizes: dict[str, int]) -> None:
    """Hold each function, each two and all, at their bounds, against the stock plan."""
    stock, ours = STOCK(lowered), GMEMAllocate()(lowered)
    names = list(functions_of(ours))
    for mod in (stock, ours):
        assert not any((mod[name].attrs or {}).get(PLANS_RESULTS) for name in names)
    for name in names:  # What a packed function may keep has storages of its own.
        keeps = "test.gmem" in lowered[name].script()
        assert keeps or stored(ours, name) <= stored(stock, name), name
    machines = [IdleMachine(mod) for mod in (stock, ours)]
    for some in (*combinations(names, 1), *combinations(names, 2), names):
        theirs, mine = (one.apart(some, sizes, 1000) for one in machines)
        assert mine <= theirs, some


@given(served_programs())
@settings(max_examples=8, deadline=None, print_blob=True)
def test_random_modules_take_no_more_at_their_bounds(program: ServedProgram):
    if "v" not in program.functions.values():
        check_bounded(lower(parse(program.text), fuse=False), {"n": program.bound})


@given(served_programs(kinds=(*SERVED, "hold")), st.data())
@settings(max_examples=4, deadline=None, print_blob=True)
def test_numbers_and_bytes_of_calls_of_changing_lengths(program: ServedProgram, data: Any):
    lowered = lower(parse(program.text), fuse=False)
    calls = data.draw(st.lists(st.sampled_from(list(program.functions)), min_size=3, max_size=9))
    lengths = [data.draw(st.integers(1, program.bound)) for _ in calls]
    holds = data.draw(st.booleans())
    rng = np.random.default_rng(len(calls))
    w, u = (rng.standard_normal(shape, dtype="float32") / 16 for shape in ((64, 256), (256, 64)))
    xs = [
        rng.standard_normal((n if program.functions[name] else 24, 64), dtype="float32")
        for name, n in zip(calls, lengths, strict=True)
    ]
    found, taken = [], []
    plans = None, STOCK, GMEMAllocate()
    for plan, machine in zip(plans, build_each(lowered, *plans), strict=True):
        results, held = [], []
        KEPT.clear()

        def run(machine=machine, results=results, held=held):
            for name, x in zip(calls, xs, strict=True):
                made = machine[name](*map(tvm.runtime.tensor, (x, w, u)))
                results.append([tensor.numpy().copy() for tensor in flat(made)])
                if holds:
                    held.append(made)

        taken.append(watch(machine, run).nbytes)
        if plan is not STOCK:  # It shares what a packed function keeps.
            for tensor, copy in KEPT:
                np.testing.assert_array_equal(tensor.numpy(), copy)
        for made, copies in zip(held, results, strict=False):
            for tensor, copy in zip(flat(made), copies, strict=True):
                np.testing.assert_array_equal(tensor.numpy(), copy)
        found.append(results)
    np.testing.assert_equal(found[2], found[0])
    KEPT.clear()
    # What is promised: results of one size each, for one function, for two, or for all.
    plans_all = program.text.count(PLANS_RESULTS) == len(program.functions)
    some = len(set(calls)) in (1, 2, len(program.functions))
    if plans_all and some and not holds and "keep" not in program.text:
        assert "v" in program.functions.values() or taken[2] <= taken[1]


EMBED = """
def embed(ids: R.Tensor(("n",), "int32"), w: R.Tensor((100, 1024), "float32")):
    n = T.int64()
    R.func_attr({"tir_var_upper_bound": {"n": 256}, "relax.memory_plan_dynamic_func_output": 1})
    return R.take(w, ids, axis=0)
"""


def test_results_of_every_length_share_one_block():
    lowered = lower(parse(EMBED), fuse=False)
    w = tvm.runtime.tensor(np.random.default_rng(0).random((100, 1024), "float32"))
    ids = [tvm.runtime.tensor(np.arange(n, dtype="int32") % 100) for n in range(1, 257, 5)]

    def run(machine: Machine) -> None:
        for one in ids:
            found = machine["embed"](one, w).numpy()
            np.testing.assert_array_equal(found, w.numpy()[one.numpy()])

    (stock, ours), _ = under_each(lowered, run, STOCK, GMEMAllocate())
    assert ours == stock


@pytest.mark.parametrize("keeps", [False, True])
def test_what_a_packed_function_reads_takes_no_more(keeps: bool):
    """Where it keeps a tensor, the next takes memory of its own; else the pool's same block."""
    name = "keep" if keeps else "peek"
    body = ["a0 = R.add(x, x)"]
    for number in range(1, 6):
        last = 100 - 10 * number
        body += [
            f'_{number} = R.call_packed("test.gmem.{name}", a{number - 1})',
            f"a{number} = R.strided_slice(a{number - 1}, axes=[0], begin=[0], end=[{last}])",
        ]
    lines = "\n".join(f"        {line}" for line in [*body, "return R.exp(a5)"])
    text = (
        "@I.ir_module\nclass Module:\n    @R.function(pure=False)\n"
        f'    def main(x: R.Tensor((100, 640), "float32")):\n{lines}\n'
    )
    x = np.random.default_rng(0).random((100, 640), "float32")

    def run(machine: Machine) -> tuple[np.ndarray, bool]:
        KEPT.clear()
        found = machine["main"](tvm.runtime.tensor(x)).numpy()
        return found, all(np.array_equal(tensor.numpy(), copy) for tensor, copy in KEPT)

    taken, results = under_each(lower(parse(text), fuse=False), run, STOCK, GMEMAllocate())
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[1][1]
    assert (taken[1] > taken[0]) is keeps


def test_results_hold_what_ends_before_them():
    """With bounded results of one size, temporaries stand in a result until it begins."""
    text = """
def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor((64, 4096), "float32")):
    n = T.int64()
    R.func_attr({"tir_var_upper_bound": {"n": 32}, "relax.memory_plan_dynamic_func_output": 1})
    a = R.concat((x, x), axis=1)
    b = R.strided_slice(a, axes=[1], begin=[0], end=[64])
    return R.matmul(R.tanh(b), w)
"""
    lowered = lower(parse(text), fuse=False)
    ours, stock = planned(lowered, GMEMAllocate()), planned(lowered, STOCK)
    assert stored(ours, "main") < stored(stock, "main")
    assert PLANS_RESULTS not in ours["main"].attrs


def test_a_language_model_as_its_server_builds_it():
    """All functions have the attribute, batches and chunks have bounds; nothing runs."""
    shape = Shape(2, 64, 8, 2, 160, 9600, chunk=40, batch=6)
    lowered = lower(module_of(shape), fuse=True)
    for variable, func in lowered.functions_items():
        if isinstance(func, relax.Function):
            lowered[variable] = func.with_attr(PLANS_RESULTS, True)
    check_bounded(lowered, bounds_of(shape))
    options = GMEMOptions(target=tvm.target.Target("llvm"))
    served = served_memory(plan_gmem(lowered, options=options), options)
    assert served.nbytes is not None


LIFTED = """
@R.function
def main(x: R.Tensor((32, 64), "float32"), w: R.Tensor((64, 64), "float32")):
    R.func_attr({"num_input": 1})
    with R.dataflow():
        t = R.permute_dims(w)
        u = R.concat((t, t), axis=1)
        a = R.matmul(x, u)
        b = R.concat((a, a), axis=0)
        c = R.strided_slice(b, axes=[1], begin=[0], end=[100])
        d = R.concat((c, c), axis=1)
        e = R.sum(d, axis=1)
        R.output(e)
    return e
"""


def test_what_transforms_weights_is_judged_by_itself():
    """Its results stay: under the stock plan, too, no other function gets their memory."""
    mod = relax.transform.LiftTransformParams()(parse(LIFTED))
    lowered = lower(mod, fuse=False)
    options = GMEMOptions(target=tvm.target.Target("llvm"))
    plans = {plan.memory.name: plan for plan in plan_gmem(lowered, options=options)}
    assert plans["main_transform_params"].memory.transforms_weights
    kernels = {v: f for v, f in lowered.functions_items() if not isinstance(f, relax.Function)}
    alone = tvm.IRModule({**kernels, lowered.get_global_var("main"): lowered["main"]})
    (by_itself,) = plan_gmem(alone, options=options)
    assert plans["main"].placement == by_itself.placement
    served = served_memory(list(plans.values()), options)
    assert served.functions == ("main",)
    assert served.nbytes is not None


SHARED_BY_DEVICES = """
@T.prim_func(s_tir=True)
def twice(a: T.Buffer((64,), "float16"), b: T.Buffer((64,), "float16")):
    for i in range(64):
        b[i] = a[i] + a[i]

def main(x: R.Tensor((64,), "float16")):
    cls = Module
    a = R.builtin.alloc_tensor(R.shape([64]), R.dtype("float16"), 0, R.str("ipc_memory"))
    cls.twice(x, a)
    b = R.builtin.alloc_tensor(R.shape([64]), R.dtype("float16"), 0, R.str("ipc_memory"))
    cls.twice(a, b)
    c = R.builtin.alloc_tensor(R.shape([64]), R.dtype("float16"), 0, R.str("ipc_memory"))
    cls.twice(b, c)
    d = R.builtin.alloc_tensor(R.shape([64]), R.dtype("float16"), 0, R.str("global"))
    cls.twice(c, d)
    return d
"""


def test_memory_that_devices_share_is_planned_in_whole_slots():
    """Its allocator knows a tensor by the start of its storage."""
    (found,) = plan_gmem(parse(SHARED_BY_DEVICES))
    (group,) = (group for group in found.memory.groups if group.scope == "ipc_memory")
    pieces = found.placement[found.memory.groups.index(group)]
    assert [sorted(piece.offsets) for piece in pieces] == [["a", "c"], ["b"]]
    assert {at for piece in pieces for at in piece.offsets.values()} == {0}
    text = GMEMAllocate()(parse(SHARED_BY_DEVICES))["main"].script()
    assert text.count('R.str("ipc_memory"), R.dtype("float16")') == 2


OWN_FUNCTIONS = """
def main(x: R.Tensor((64,), "float32"), state: R.Any):
    a = R.exp(x)
    s: R.Any = R.call_packed("vm.builtin.rnn_state_set", state, 0, 0, a, ty_args=(R.Any,))
    b = R.tanh(x)
    lse = R.negative(x)
    m = R.call_packed(
        "vm.builtin.attention_kv_cache_merge_attn_output_inplace", s, b, lse, a, lse,
        ty_args=(R.Tuple(R.Tensor((64,), "float32"), R.Tensor((64,), "float32")),),
    )
    m0 = m[0]
    c = R.abs(x)
    d = R.add(m0, c)
    return d
"""


def test_the_machine_s_own_functions_keep_nothing():
    """One of them returns what it is given: that lives on as a field of its result."""
    (found,) = plan_gmem(lower(parse(OWN_FUNCTIONS), fuse=False))
    assert not found.memory.may_be_kept
    lives = [buffer.live for buffer in found.memory.main.problem.buffers]
    assert len(lives) == 4
    _, merged, _, beside = lives
    assert merged[-1][1] == beside[-1][1]
