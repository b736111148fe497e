# SPDX-License-Identifier: Apache-2.0
"""Offsets that kernels add to their indices: the same results, the same code but for constants."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from measured_memory import allocated_at
from relax_programs import inputs_of, parse, relax_sources
from relax_runs import STOCK, assert_same, build_each, lower_source, planned, run
from small_modules import module, placed, written_out
from sweeps import sample, swept
from tvm import relax, tirx
from tvm.target import Target
from written_networks import WRITTEN

from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem
from passes.relax.kernel_arguments import kernel_uses
from passes.relax.tensors import AllocatedTensor
from tvm_ext.lowering import capture_relax, known_target
from tvm_ext.transform import GMEMAllocate

IN_KERNELS = GMEMAllocate(target="llvm", offsets="kernel")

PROGRAM = """
@T.prim_func(s_tir=True)
def addressed(x: T.Buffer((128, 64), "float32"), y: T.Buffer((128, 64), "float32")):
    for i, j in T.grid(128, 64):
        y[i, j] = x[i, j] * T.float32(0.5)
    T.evaluate(T.isnullptr(x.data))

def main(x: R.Tensor((64, 64), "float32"), c: R.Tensor((), "bool")):
    cls = Module
    a = R.nn.relu(x)
    b = R.concat((a, a), axis=0)
    d = R.call_tir(cls.addressed, (b,), out_ty=R.Tensor((128, 64), "float32"))
    e = R.concat((d, b), axis=0)
    f = R.call_dps_packed("test.gmem.double", (e,), out_ty=R.Tensor((256, 64), "float32"))
    g = R.reshape(R.negative(R.concat((f, e), axis=0)), (128, 256))
    if c:
        r = R.exp(g)
    else:
        r = R.abs(g)
    s = R.exp(r)
    t = R.negative(s)
    u = R.concat((s, t), axis=0)
    v = R.concat((u, u, u, u), axis=0)
    w = R.concat((v, R.negative(v)), axis=0)
    return R.sum(R.exp(w), axis=[0])
"""


def test_what_anything_but_a_kernel_reads_begins_with_its_memory():
    lowered = lower_source(PROGRAM)
    (found,) = plan_gmem(lowered, options=GMEMOptions(target=Target("llvm"), offsets="kernel"))
    offsets = {n: at for pieces in found.placement for p in pieces for n, at in p.offsets.items()}
    buffer_of = {tensor: name for name, tensor in placed(found).items()}
    text = lowered["main"].script()
    names_of = dict(re.findall(r"(\w+): R\.Tensor\(.*\) = (alloc\d*)\n", text))
    taken = re.findall(r'\baddressed\((\w+), |"test\.gmem\.double", (\w+), (\w+)', text)
    fixed = [buffer_of[names_of.get(name, name)] for names in taken for name in names if name]
    assert len(fixed) == 3  # One whose address is taken, and the two of the packed function.
    assert not any(offsets[name] for name in fixed)
    assert set(fixed) <= found.memory.kernel_arguments.from_start
    assert any(offsets.values())


def test_programs_with_branches_and_packed_functions_compute_the_same():
    lowered = lower_source(PROGRAM)
    lowered["reshape"] = lowered["reshape"].with_attr("global_symbol", "reshape")
    before = lowered.script()
    ours = planned(lowered, IN_KERNELS)
    relax.analysis.well_formed(ours)
    assert lowered.script() == before
    text = ours["main"].script()
    assert "ensure_zero_offset" not in text
    assert "_at_offsets" in text
    names = {str(variable.name_hint) for variable in ours.get_global_vars()}
    assert "reshape" in names, "others may call it"
    assert "sum" not in names
    x = np.random.default_rng(0).standard_normal((64, 64), dtype="float32")
    assert_same(lowered, IN_KERNELS, *([x, np.array(taken)] for taken in (True, False)))


@pytest.mark.parametrize(
    ("parameter", "movable"),
    [
        ('T.Buffer((8,), "float32")', True),
        ('T.Buffer((8,), "float32", strides=(2,))', False),
        ('T.Buffer((8,), "float32", elem_offset=4)', False),
        ('T.Buffer((8,), "float32", offset_factor=1)', False),  # Wherever a caller says.
        ('T.Buffer((8,), "float32", scope="local.UB")', False),
        ('T.Buffer((8,), "int4")', False),
        ('T.Buffer((8,), "float32x3")', False),  # No element begins at byte 64.
        ("T.int32", False),
    ],
)
def test_only_plain_memory_of_whole_bytes_is_moved(parameter: str, movable: bool):
    kernel = tvm.script.from_source(f"@T.prim_func\ndef f(a: {parameter}):\n    T.evaluate(0)")
    mod = tvm.IRModule({"f": kernel})
    given = AllocatedTensor("a", None, (), 0, buffer="a")
    call = mod.get_global_var("f"), relax.Var("call"), [(given,)]
    assert (kernel_uses(mod, [call], [given], 64).from_start == frozenset()) == movable


def test_what_a_call_without_a_variable_is_given_begins_with_its_memory():
    body = """
made = R.builtin.alloc_tensor(R.shape([16]), R.dtype("float32"), 0)
_ = R.match_cast(cls.twice(x, made), R.Tuple([]))
return x
"""
    (found,) = plan_gmem(parse(written_out(body)), options=GMEMOptions(offsets="kernel"))
    assert found.memory.kernel_arguments.from_start == {"made"}


def test_a_tensor_that_a_packed_function_reshapes_may_begin_elsewhere():
    body = """
a = R.exp(x)
b = R.call_packed("vm.builtin.reshape", a, R.shape([64]), ty_args=R.Tensor((64,), "float32"))
return R.sum(b)
"""
    (found,) = plan_gmem(module(body), options=GMEMOptions(offsets="kernel"))
    assert len(found.problem.buffers) == 1
    assert not found.memory.kernel_arguments.from_start


PARAMETER_OR_TENSOR = """
def main(x: R.Tensor((100,), "float32"), c: R.Tensor((), "bool")):
    if c:
        s = R.sum(x)
        v = (x, s)
    else:
        a = R.abs(x)
        s = R.sum(x)
        v = (a, s)
    r = R.add(v[0], v[1])
    return r
"""


def test_a_value_that_may_be_a_parameter_begins_with_its_memory():
    lowered = lower_source(PARAMETER_OR_TENSOR)
    x = np.random.default_rng(0).standard_normal(100, dtype="float32")
    assert_same(lowered, IN_KERNELS, *([x, np.array(taken)] for taken in (True, False)))


@swept(1, 150, relax_sources(keeps=False))
def test_random_programs_compute_the_same(source: str):
    lowered = lower_source(source)
    ours = planned(lowered, IN_KERNELS)
    relax.analysis.well_formed(ours)
    assert_same(lowered, IN_KERNELS, *(inputs_of(ways & 1, ways & 2) for ways in range(4)))


def test_functions_that_share_their_variables_have_offsets_of_their_own():
    lowered = lower_source("""
@R.function
def main(x: R.Tensor(("n", 64), "float32"), y: R.Tensor((64, 64), "float32")):
    a = R.nn.relu(x)
    p = R.add(y, y)
    c = R.matmul(R.matmul(a, y), p)
    d = R.add(c, a)
    e = R.matmul(d, R.multiply(p, p))
    return R.exp(R.add(e, c))
""")
    large = {"tir_var_upper_bound": {"n": 512}, "global_symbol": "large"}
    main = lowered["main"]
    lowered[lowered.get_global_var("main")] = main.with_attr("tir_var_upper_bound", {"n": 8})
    lowered[tvm.ir.GlobalVar("large")] = main.with_attr(large)
    machines = build_each(lowered, IN_KERNELS, None)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((rows, 64), dtype="float32") for rows in (8, 64)]
    for name in ("main", "large"):
        found, wanted = (run(machine, name, arrays) for machine in machines)
        np.testing.assert_equal(found, wanted)


def test_it_is_refused_where_it_cannot_be():
    lowered = lower_source(PROGRAM)
    with pytest.raises(ValueError, match="not possible for webgpu: a kernel binds whole buffers"):
        GMEMAllocate(target="webgpu", offsets="kernel")(lowered)
    with pytest.raises(ValueError, match="offsets must be True, False or 'kernel'"):
        GMEMAllocate(offsets="kernels")


def test_a_piece_is_no_larger_than_a_kernel_may_see():
    lowered = lower_source(PROGRAM)
    for most in (1 << 27, 100_000, 70_000):
        target = Target({"kind": "vulkan", "max_storage_buffer_range": most})
        (found,) = plan_gmem(lowered, options=GMEMOptions(target=target, offsets="kernel"))
        moved = [p for pieces in found.placement for p in pieces if any(p.offsets.values())]
        assert all(piece.size <= most for piece in moved)
        stock = allocated_at(planned(lowered, STOCK)["main"], {})
        ours = GMEMAllocate(target=target, offsets="kernel")(lowered)
        assert allocated_at(ours["main"], {}) <= stock


# ----------------------------------------------------------------------------------------- sources


def opencl(mod: tvm.IRModule) -> str:
    """Return the OpenCL source of a module's kernels."""
    target = Target(known_target("opencl"), host="llvm")
    kernels = {
        v: f.with_attr("global_symbol", str(v.name_hint))
        for v, f in mod.functions.items()
        if isinstance(f, tirx.PrimFunc)
    }
    lower_kernels, _, finalize = tirx.get_tir_pipeline("default")
    with target:
        both = lower_kernels(tirx.transform.BindTarget(target)(tvm.IRModule(kernels)))
        on_device = tirx.transform.Filter(lambda f: f.attrs["target"].kind.name == "opencl")(both)
        built = tvm.get_global_func("target.build.opencl")(finalize()(on_device), target)
    return str(built.inspect_source())


def kernels_of(source: str) -> dict[str, str]:
    """Return the text of each kernel, by its name."""
    parts = re.split(r"(?=__kernel void )", source)
    named = [(re.match(r"__kernel void[^(]*?(\w+)\((?!.*max_work)", p), p) for p in parts]
    return {found[1]: text for found, text in named if found and "{" in text}


WIDE = re.compile(r"vload\d|vstore\d|float4|half4|\blong\b")


@pytest.mark.parametrize("name", sample(("bert_layer", "resnet18", "unet"), "bert_layer"))
def test_sources_have_the_same_loads_and_index_widths(name: str):
    lowered = capture_relax(WRITTEN[name].build(), "opencl")
    ours = GMEMAllocate(target=known_target("opencl"), offsets="kernel")(lowered)
    assert "ensure_zero_offset" not in ours["forward"].script()
    before, behind = opencl(lowered), opencl(ours)
    plain, compared = kernels_of(before), 0
    for kernel, text in kernels_of(behind).items():
        original = plain.get(re.sub(r"_at_offsets(_\d+)?", "", kernel))
        if "_at_offsets" in kernel and original is not None:
            assert len(WIDE.findall(text)) == len(WIDE.findall(original)), kernel
            compared += 1
    assert compared
    stock = allocated_at(planned(lowered, STOCK)["forward"], {})
    assert allocated_at(ours["forward"], {}) <= stock
