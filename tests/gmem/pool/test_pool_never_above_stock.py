# SPDX-License-Identifier: Apache-2.0
"""The default plan against the stock plan: bytes planned, and bytes that the VM takes."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from measured_memory import IdleMachine, allocated_at
from relax_programs import parse
from relax_runs import (
    STOCK,
    Machine,
    build,
    build_each,
    flat,
    lower,
    lower_source,
    planned,
    run,
    under_each,
)
from runtime_shapes import RUNTIME_SHAPES
from sweeps import sample

from tvm_ext.transform import GMEMAllocate

# ------------------------------------------------------------------------------------- networks


@pytest.mark.parametrize("name", sample(RUNTIME_SHAPES, *list(RUNTIME_SHAPES)[::7]))
def test_networks_are_planned_in_fewer_bytes(name: str):
    network = RUNTIME_SHAPES[name]
    lowered = lower(network.build())
    stock = planned(lowered, STOCK)
    ours = planned(lowered, GMEMAllocate())
    bounded = planned(lowered, GMEMAllocate(upper_bounds=network.sizes))

    def nbytes(mod: tvm.IRModule, scale: int) -> list[int]:
        sizes = {dim: scale * size for dim, size in network.sizes.items()}
        return [allocated_at(mod[function], sizes) for function in network.calls]

    slots = GMEMAllocate(target="opencl", budget=5_000)(lowered)
    assert not any("ensure_zero_offset" in slots[name].script() for name in network.calls)
    for mod, scale in ((bounded, 1), (ours, 1), (ours, 3), (slots, 1), (slots, 3)):
        both = list(zip(nbytes(mod, scale), nbytes(stock, scale), strict=True))
        assert all(mine <= theirs for mine, theirs in both)
        fewer = sum(mine for mine, _ in both) < sum(theirs for _, theirs in both)
        as_stock = mod is ours and name == "translation_sequence"  # One function of two dimensions
        assert fewer != as_stock or mod is slots


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNTIME_SHAPES)
def test_networks_take_fewer_bytes_when_they_run(name: str):
    network = RUNTIME_SHAPES[name]
    mod = network.build()

    def call(machine: Machine) -> list[list[np.ndarray]]:
        made = [machine[f](*network.arguments(mod[f], 0)) for f in network.calls]
        return [[tensor.numpy().copy() for tensor in flat(each)] for each in made]

    plans = None, STOCK, GMEMAllocate(), GMEMAllocate(upper_bounds=network.sizes)
    (none, stock, ours, bounded), results = under_each(lower(mod), call, *plans, heaps=False)
    assert bounded <= stock <= none
    assert ours <= stock
    for found in results[1:]:
        np.testing.assert_equal(found, results[0])


# ------------------------------------------------------------------------------ several functions


def test_functions_that_run_in_turns_share_what_is_large():
    text = ["@I.ir_module", "class Module:"]
    for name, rows in (("prefill", 96), ("decode", 1)):
        text += [
            "    @R.function(pure=False)",
            f'    def {name}(x: R.Tensor(({rows}, 256), "float32"), '
            'w: R.Tensor((256, 256), "float32")):',
            "        t = R.permute_dims(w)",
            "        a = R.matmul(x, t)",
            "        b = R.nn.relu(a)",
            "        c = R.add(a, b)",
            "        d = R.matmul(c, t)",
            "        e = R.negative(d)",
            "        return e",
        ]
    lowered = lower_source("\n".join(text))
    rng = np.random.default_rng(0)
    w = rng.standard_normal((256, 256), dtype="float32")
    rows = {"prefill": 96, "decode": 1}
    xs = {n: rng.standard_normal((r, 256), dtype="float32") for n, r in rows.items()}
    assert check_taken(lowered, {name: [x, w] for name, x in xs.items()}) < 3 * w.nbytes


def check_taken(lowered: tvm.IRModule, calls: dict[str, list[np.ndarray]]) -> int:
    """Hold what the pool takes for some calls, and their results, against the stock plan's."""
    call = lambda machine: [run(machine, *each) for each in calls.items()]  # noqa: E731
    (stock, ours), results = under_each(lowered, call, STOCK, GMEMAllocate(), heaps=False)
    assert ours <= stock
    np.testing.assert_equal(*results)
    return stock


RETURNED_BELOW_A_BOUND = """
@R.function
def main(x: R.Tensor(("n", 128), "float32")):
    n = T.int64()
    a = R.nn.log_softmax(x)
    b = R.exp(a)
    c = R.matmul(b, R.permute_dims(a))
    d = R.matmul(c, b)
    e = R.cumsum(d, axis=0)
    f = R.cumsum(e, axis=0)
    return (c, f)
"""


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_a_result_takes_what_a_bounded_tensor_gave_back(rows: int):
    lowered = lower_source(RETURNED_BELOW_A_BOUND)
    main = lowered.get_global_var("main")
    lowered.update_func(main, lowered[main].with_attr("tir_var_upper_bound", {"n": 40}))
    x = np.random.default_rng(0).standard_normal((rows, 128), dtype="float32")
    check_taken(lowered, {"main": [x]})


STORAGE_OF_A_SIZE_FROM_OUTSIDE = """
def main(x: R.Tensor((64, 64), "float32"), size: R.Shape(ndim=1)):
    own = R.memory.alloc_storage(
        size, R.prim_value(0), R.str("global"), R.dtype("uint8")
    )
    t = R.memory.alloc_tensor(own, R.prim_value(0), R.shape([64, 64]), R.dtype("float32"))
    a = R.exp(x)
    b = R.concat((a, x), axis=0)
    c = R.sum(b, axis=0)
    d = R.concat((b, b, a), axis=0)
    e = R.add(R.sum(d, axis=0), c)
    f = R.multiply(R.add(R.tanh(a), e), e)
    seen = R.shape_of(t)
    return (f, seen)
"""


def test_a_storage_whose_size_comes_from_outside_ends_no_build():
    """What is not known to the model of the machine is planned as the stock pass plans it."""
    mod = parse(STORAGE_OF_A_SIZE_FROM_OUTSIDE)
    x = tvm.runtime.tensor(np.random.default_rng(0).random((64, 64), "float32"))
    size = tvm.runtime.ShapeTuple([16384])
    results = []
    for machine in build_each(lower(mod), STOCK, GMEMAllocate()):
        found, seen = machine["main"](x, size)
        assert list(seen) == [64, 64]
        results.append(found.numpy())
    np.testing.assert_array_equal(*results)


DIVIDED = """
@R.function
def main(x: R.Tensor(("n", 8), "float32"), c: R.Tensor((), "bool")):
    n = T.int64()
    a = R.full(R.shape([(n * 64) // (n - 1)]), R.const(1.5, "float32"))
    b = R.exp(x)
    d = R.concat((R.add(b, x), b), axis=0)
    if c:
        e = R.sum(R.add(R.exp(a), a))
    else:
        e = R.sum(a)
    return R.multiply(R.add(d, e), d)
"""


def test_a_size_that_divides_by_zero_somewhere_ends_no_build():
    """The model tries sizes that no call has, such as one at which a dimension has none."""
    mod = parse(DIVIDED)
    x = np.random.default_rng(0).random((5, 8), "float32")
    machine = build(lower(mod), GMEMAllocate())
    for taken, total in ((True, 80 * (np.exp(1.5) + 1.5)), (False, 120.0)):
        found = machine["main"](*map(tvm.runtime.tensor, (x, np.array(taken)))).numpy()
        d = np.concatenate([np.exp(x) + x, np.exp(x)])
        np.testing.assert_allclose(found, (d + total) * d, rtol=1e-5)


# ----------------------------------------------------------------------------- one pool, many calls


def test_calls_of_many_lengths_take_no_more_from_one_pool():
    """The pool keeps a block of each size: prompts of 1 to 64 tokens, one after the other."""
    lowered = lower(RUNTIME_SHAPES["gpt2_sequence"].build())
    taken = []
    for plan in (STOCK, GMEMAllocate()):
        machine = IdleMachine(planned(lowered, plan))
        calls = [("prefill", machine.arguments("prefill", {}, length)) for length in range(1, 65)]
        taken.append(machine.in_order(calls, hold=False))
    assert taken[1] < taken[0]
