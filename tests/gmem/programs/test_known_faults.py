# SPDX-License-Identifier: Apache-2.0
"""Faults that users of TVM's own memory planning met: the programs of docs/known-faults.md."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from relax_programs import parse
from relax_runs import (
    STOCK,
    assert_same,
    build,
    build_each,
    lower,
    lower_by_needed_passes,
    lower_source,
    planned,
    run,
)
from small_modules import placed, written_out
from tvm import relax

from passes.gmem.relax_functions import plan_gmem
from tvm_ext.transform import GMEMAllocate

PLANNERS = ("best", "rec_tbl", "first_fit")

MATCH_CAST = """
def main(x: R.Tensor((5, 8), "float32")):
    left_source = R.add(x, R.const(0.25, "float32"))
    left = R.match_cast(left_source, R.Tensor((5, 8), "float32"))
    right = R.add(x, R.const(0.125, "float32"))
    scaled = R.multiply(right, right)
    reader = R.subtract(left, scaled)
    out = R.negative(reader)
    return out
"""

MATCH_CAST_OF_A_VIEW = """
def main(x: R.Tensor((4, 6), "float32")):
    a = R.negative(x)
    flat = R.memory.view(a, R.shape([24]), R.dtype("float32"), 0)
    n = T.int64()
    cast = R.match_cast(flat, R.Tensor((n,), "float32"))
    b = R.nn.relu(x)
    c = R.exp(b)
    d = R.add(b, c)
    reader = R.sum(cast)
    out = R.add(d, reader)
    return out
"""


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("source", [MATCH_CAST, MATCH_CAST_OF_A_VIEW])
def test_an_alias_through_match_cast_keeps_its_storage(source: str, planner: str):
    """apache/tvm 20190 and 20207: the alias lost its storage, and later tensors overwrote it."""
    lowered = lower_by_needed_passes(parse(source))
    assert "R.match_cast" in lowered.script()
    shape = [int(extent) for extent in lowered["main"].params[0].ty.shape]
    rng = np.random.default_rng(0)
    calls = ([rng.standard_normal(shape, dtype="float32")] for _ in range(2))
    assert_same(lowered, GMEMAllocate(planner), *calls)
    (found,) = plan_gmem(lowered, planner)
    tensors = placed(found)
    (alias,) = (
        buffer for buffer in found.memory.main.problem.buffers if tensors[buffer.name] == "alloc"
    )
    # The reader's name stands behind the kernel that reads the alias last.
    assert alias.live[-1][1] == found.memory.bindings.index("reader")


def test_a_storage_of_one_branch_is_not_used_in_the_other():
    """apache/tvm 20191: one branch allocated what the other used; calls without it crashed."""
    lowered = lower_source("""
def main(x: R.Tensor((4, 8), "float32"), c: R.Tensor((), "bool")):
    if c:
        flat = R.reshape(x, R.shape([32]))
        twice = R.add(flat, flat)
        out = R.reshape(twice, R.shape([4, 8]))
    else:
        flat = R.reshape(x, R.shape([32]))
        less = R.negative(flat)
        out = R.reshape(less, R.shape([4, 8]))
    return out
""")
    machine = build(lowered, GMEMAllocate())
    x = np.arange(32, dtype="float32").reshape(4, 8)
    for taken in (False, True, False):
        (out,) = run(machine, "main", [x, np.array(taken)])
        np.testing.assert_array_equal(out, 2 * x if taken else -x)


def test_alloc_tensor_in_a_dataflow_block():
    """apache/tvm 17488: an internal error. A dataflow block is a block like any other here."""
    source = written_out("""
with R.dataflow():
    a = twice(x)
    b = twice(a)
    c = twice(b)
    R.output(c)
return c
""")
    # TVM holds the calls of kernels against the block, which promises to have no side effect.
    mod = parse(source, check_well_formed=False)
    ours = GMEMAllocate()(mod)
    (found,) = plan_gmem(mod)
    assert list(placed(found).values()) == ["a", "b"]
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}):
        (captured,) = plan_gmem(mod)  # The stock pass says nothing of what it leaves.
    assert list(placed(captured).values()) == ["a", "b"]
    machine = build(relax.transform.ToNonDataflow()(ours), None)
    x = np.arange(16, dtype="float32")
    np.testing.assert_array_equal(run(machine, "main", [x])[0], 8 * x)


def test_a_lower_bound_alone_is_no_size():
    """apache/tvm 18663: with a lower bound only, a dynamic tensor was planned as a static one."""
    source = """
def main(x: R.Tensor(("n", 16), "float32")):
    R.func_attr({"tir_var_lower_bound": {"n": 2}})
    a = R.nn.relu(x)
    b = R.negative(a)
    c = R.exp(b)
    d = R.add(c, b)
    return d
"""
    lowered = lower_source(source)
    (found,) = plan_gmem(lowered)
    assert not found.memory.main.problem.buffers
    assert [str(group.unit) for group in found.memory.groups if group.problem.buffers] == ["n"]
    machine = build(lowered, GMEMAllocate())
    for rows in (2, 3, 300):
        x = np.random.default_rng(rows).standard_normal((rows, 16), dtype="float32")
        b = -np.maximum(x, 0)
        np.testing.assert_allclose(
            run(machine, "main", [x])[0], np.exp(b) + b, rtol=1e-5, atol=1e-6
        )


def test_a_module_that_allocates_by_itself_keeps_what_it_has(caplog: pytest.LogCaptureFixture):
    source = written_out("""
own: R.Any = R.memory.alloc_storage(R.shape([64]), 0, R.str("global"), R.dtype("uint8"))
a: R.Tensor((16,), "float32") = R.memory.alloc_tensor(own, 0, R.shape([16]), R.dtype("float32"), 0)
_ = cls.twice(x, a)
b = twice(a)
c = twice(b)
return c
""")
    mod = parse(source)
    with caplog.at_level("INFO", logger="tvm_ext.GMEMAllocate"):
        ours = GMEMAllocate()(mod)
    said = "function 'main': what it allocates already stays as it is"
    assert caplog.messages.count(said) == 1
    text = ours["main"].script()
    assert text.count("R.memory.alloc_storage") == 2
    assert "R.memory.alloc_tensor(own, 0" in text
    x = np.arange(16, dtype="float32")
    np.testing.assert_array_equal(run(build(ours, None), "main", [x])[0], 8 * x)
    again = GMEMAllocate()(ours)
    assert tvm_ffi.structural_equal(again["main"], ours["main"])


def test_each_device_has_storages_of_its_own():
    source = """
I.module_global_infos({"vdevice": [I.vdevice("llvm", 0), I.vdevice("llvm", 1)]})

@R.function
def main(
    x: R.Tensor((2, 3), "float32"), y: R.Tensor((3, 4), "float32"),
    z: R.Tensor((4, 5), "float32")
) -> R.Tensor((2, 5), "float32"):
    with R.dataflow():
        a = R.matmul(x, y)
        a1 = R.negative(a)
        b = R.to_vdevice(a1, "llvm:1")
        c = R.negative(b)
        d = R.exp(c)
        e = R.matmul(d, z)
        R.output(e)
    return e
"""
    mod = relax.transform.RealizeVDevice()(parse(source))
    lowered = lower(mod, fuse=False)
    (found,) = plan_gmem(lowered)
    devices = {group.device: len(group.problem.buffers) for group in found.memory.groups}
    assert devices.keys() == {0, 1}
    ours = planned(lowered, GMEMAllocate())
    relax.analysis.well_formed(ours)
    assert all(found.placement)
    executable = tvm.compile(mod, relax_pipeline=_pipeline())
    machine = relax.VirtualMachine(executable, [tvm.cpu(0), tvm.cpu(1)])
    rng = np.random.default_rng(0)
    x, y, z = (rng.standard_normal(s, dtype="float32") for s in ((2, 3), (3, 4), (4, 5)))
    arguments = [tvm.runtime.tensor(a, tvm.cpu(d)) for a, d in ((x, 0), (y, 0), (z, 1))]
    expected = np.exp(x @ y) @ z
    np.testing.assert_allclose(machine["main"](*arguments).numpy(), expected, rtol=1e-5)


def _pipeline() -> tvm.transform.Pass:
    from tvm_ext import relax_pipeline

    return relax_pipeline("llvm")


NEGATIVE = """
@R.function
def main(s: R.Shape(["n"]), x: R.Tensor((16,), "float32")):
    n = T.int64()
    R.func_attr({"tir_var_upper_bound": {"n": 16}})
    a = R.full(R.shape([32 - n]), R.const(1, "float32"), "float32")
    b = R.exp(x)
    c = R.add(a, R.const(1, "float32"))
    d = R.add(R.exp(b), R.sum(c))
    return R.add(d, R.sum(a))
"""


def test_a_shape_value_below_its_bound_ends_the_call():
    """A tensor of ``32 - n`` elements is larger than planned where n is negative."""
    machine = build(lower_source(NEGATIVE), GMEMAllocate())
    x = tvm.runtime.tensor(np.zeros(16, "float32"))
    for n in (0, 4, 16):
        found = machine["main"](tvm.runtime.ShapeTuple([n]), x).numpy()
        np.testing.assert_allclose(found, np.full(16, np.e + 3 * (32 - n)), rtol=1e-5)
    for n in (-1, -200):
        with pytest.raises(RuntimeError, match="function 'main': n is below 0"):
            machine["main"](tvm.runtime.ShapeTuple([n]), x)


def test_the_type_of_a_callable_says_nothing_of_what_the_function_is_given():
    """Its `n` is no extent of a tensor that TVM's runtime checks to be one."""
    own = 'x: R.Tensor((16,), "float32")'
    taken = 'g: R.Callable((R.Tensor(("n",), "float32"),), R.Tensor(("n",), "float32"))'
    source = NEGATIVE.replace(own, f"{own}, {taken}")
    assert source != NEGATIVE
    machine = build(lower_source(source), GMEMAllocate())
    arguments = tvm.runtime.tensor(np.zeros(16, "float32")), tvm.runtime.convert(lambda x: x)
    found = machine["main"](tvm.runtime.ShapeTuple([4]), *arguments).numpy()
    np.testing.assert_allclose(found, np.full(16, np.e + 3 * 28), rtol=1e-5)
    with pytest.raises(RuntimeError, match="function 'main': n is below 0"):
        machine["main"](tvm.runtime.ShapeTuple([-200]), *arguments)


EQUAL_SIZES = """
@R.function
def main(s: R.Shape(["n", "m"])):
    n = T.int64()
    m = T.int64()
    a = R.full(R.shape([T.max(n, m)]), R.const(1, "float32"), "float32")
    b = R.sum(R.exp(a))
    c = R.full(R.shape([T.max(m, n)]), R.const(2, "float32"), "float32")
    return R.add(b, R.sum(R.exp(c)))
"""


def test_sizes_that_are_equal_and_written_otherwise_share_memory():
    text = planned(lower_source(EQUAL_SIZES), GMEMAllocate("rec_tbl")).script()
    # Two slots in which four tensors take turns, and one of the sums, of constant size.
    assert text.count("R.memory.alloc_storage") == 3


RETURNED_ARGUMENT = """
@R.function(pure=False)
def main(x: R.Tensor((64,), "float32"), c: R.Tensor((), "bool")):
    one = R.exp(x)
    kept = R.call_packed("test.gmem.keep", one, ty_args=R.Tensor((64,), "float32"))
    if c:
        other = R.negative(x)
    else:
        other = R.sin(x)
    return R.add(kept, R.exp(other))
"""


@pytest.mark.parametrize("offsets", [True, False])
def test_an_argument_that_a_packed_function_returns_keeps_its_storage(offsets: bool):
    lowered = lower_source(RETURNED_ARGUMENT)
    stock, ours = build_each(lowered, STOCK, GMEMAllocate(offsets=offsets))
    x = np.arange(64, dtype="float32") / 64
    for way, other in ((True, -x), (False, np.sin(x))):
        found = [run(one, "main", [x, np.array(way)])[0] for one in (stock, ours)]
        np.testing.assert_allclose(found[1], np.exp(x) + np.exp(other), rtol=1e-5)
        assert not np.allclose(*found)
