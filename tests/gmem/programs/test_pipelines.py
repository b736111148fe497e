# SPDX-License-Identifier: Apache-2.0
"""`GMEMAllocate` in pipelines: in those of others, and in ours for all targets of TVM."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tvm
from llvm_level import at_level
from relax_programs import parse
from relax_runs import build, lower
from tvm import relax, te, topi
from tvm.ir.instrument import pass_instrument
from tvm.relax.ir.instrument import WellFormedInstrument
from tvm.target import Target

import tvm_ext

CHAIN = """
@I.ir_module
class Module:
    @R.function(pure=False)
    def main(x: R.Tensor((64, 64), "float32")):
        a = R.exp(x)
        b = R.concat((a, a), axis=0)
        c = R.concat((b, a), axis=0)
        d = R.concat((c, b), axis=0)
        return R.sum(d)
"""


@pytest.fixture(scope="module")
def lowered() -> tvm.IRModule:
    return lower(parse(CHAIN), fuse=False)


def test_it_stands_in_the_place_of_the_stock_pass_by_name(
    lowered: tvm.IRModule, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    expected = tvm_ext.transform.GMEMAllocate()(lowered)
    runs = []

    def replaced() -> tvm.ir.transform.Pass:
        runs.append(0)
        return tvm_ext.transform.GMEMAllocate()

    monkeypatch.setattr(relax.transform, "StaticPlanBlockMemory", replaced)
    with caplog.at_level(logging.INFO):
        ours = relax.transform.StaticPlanBlockMemory()(lowered)
    tvm.ir.assert_structural_equal(ours, expected)
    assert runs == [0]
    assert "fails" not in caplog.text


def test_all_else_works_on_while_it_stands_there(monkeypatch: pytest.MonkeyPatch):
    mod = parse(CHAIN)

    def plans() -> list[tuple[str, str, int]]:
        views = tvm_ext.compare(mod, "best").memories
        return [(view.holds, one.planner, one.plan.peak) for view in views for one in view.plans]

    expected = plans()
    monkeypatch.setattr(relax.transform, "StaticPlanBlockMemory", tvm_ext.transform.GMEMAllocate)
    assert plans() == expected
    x = np.random.default_rng(0).standard_normal((64, 64), dtype="float32")
    for pipeline in (tvm_ext.relax_pipeline("llvm", order=True), "default"):
        executable = tvm.compile(mod, at_level("llvm"), relax_pipeline=pipeline)
        found = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x))
        np.testing.assert_allclose(found.numpy(), 5 * np.exp(x).sum(), rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"metadata": True}, {"upper_bounds": {}}])
def test_what_comes_out_passes_the_instrument(lowered: tvm.IRModule, options: dict):
    with tvm.transform.PassContext(instruments=[WellFormedInstrument()]):
        planned = tvm_ext.transform.GMEMAllocate(**options)(lowered)
    relax.analysis.well_formed(planned)


CALLING = CHAIN.replace("return R.sum(d)", "return Module.total(d)").replace(
    "    @R.function", "{0}    @R.function", 1
)
TOTAL = """
    @R.function(pure=False)
    def total(x: R.Tensor((320, 64), "float32")) -> R.Tensor((), "float32"):
        y = R.exp(x)
        return R.sum(y)

"""


def test_functions_that_call_each_other_pass_the_instrument():
    """TVM's plan of each is looked at alone, where a function that it calls is not there."""
    lowered = lower(parse(CALLING.format(TOTAL)), fuse=False)
    with tvm.transform.PassContext(instruments=[WellFormedInstrument()]):
        planned = tvm_ext.transform.GMEMAllocate()(lowered)
    relax.analysis.well_formed(planned)
    tvm.ir.assert_structural_equal(planned, tvm_ext.transform.GMEMAllocate()(lowered))


def test_the_host_is_one_of_the_devices_by_any_index():
    """TVM's virtual machine refuses the index -1, which it reserves for the host."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((64,), "float32"))
    given = te.placeholder((64,), "float32", "a")
    kernel = te.create_prim_func([given, topi.add(given, given)])
    with builder.function("main", [x], attrs={"relax.force_pure": True}):
        double = builder.add_func(kernel.with_attr("global_symbol", "double"), "double")
        last = x
        for name in "abcd":
            shape = relax.ShapeExpr([64])
            made = builder.emit(relax.op.builtin.alloc_tensor(shape, "float32", -1), name)
            builder.emit(relax.Call(double, [last, made]), "_")
            last = made
        builder.emit_func_output(last)
    planned = tvm_ext.transform.GMEMAllocate(target="llvm")(builder.finalize())
    machine = build(planned, None)
    found = machine["main"](tvm.runtime.tensor(np.arange(64, dtype="float32"))).numpy()
    np.testing.assert_array_equal(found, np.arange(64, dtype="float32") * 16)
    on_gpu = tvm_ext.transform.GMEMAllocate(target="vulkan")(builder.finalize())
    storages = [line for line in on_gpu["main"].script().splitlines() if "alloc_storage" in line]
    assert storages
    assert all("-1" in line for line in storages)


# ------------------------------------------------- `relax_pipeline`: TVM's passes but for planning


TARGETS = {
    "llvm": "llvm",
    "cuda": {"kind": "cuda", "arch": "sm_61"},
    "rocm": {"kind": "rocm", "mcpu": "gfx1030"},
    "vulkan": "vulkan",
    "opencl": "opencl",
    "metal": "metal",
    "webgpu": "webgpu",
    "adreno": "qcom/adreno-opencl",
    "adreno with textures": "qcom/adreno-opencl-texture",
    "adreno by vulkan": "qcom/adreno-vulkan",
    "hexagon": "hexagon",
    "c": "c",
}

NETWORK = """
@R.function
def main(x: R.Tensor((4, 8, 8), "float32")):
    with R.dataflow():
        a = R.nn.relu(x)
        b = R.nn.softmax(a, axis=2)
        c = R.concat((b, a), axis=1)
        d = R.sum(c, axis=[1])
        R.output(d)
    return d
"""


@pass_instrument
class Listed:
    """The passes that stand in a pipeline's own list: those within others are left out."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.depth = 0

    def run_before_pass(self, _mod: tvm.IRModule, info: object) -> None:
        self.depth += 1
        if self.depth == 3:  # The pipeline is a pass, which runs a sequence.
            self.names.append(str(info.name))

    def run_after_pass(self, _mod: tvm.IRModule, _info: object) -> None:
        self.depth -= 1


def names_of(pipeline: tvm.ir.transform.Pass) -> list[str]:
    """Run a pipeline without a current target, and return the names of its passes."""
    listed = Listed()
    with tvm.transform.PassContext(opt_level=3, instruments=[listed]):
        pipeline(parse(NETWORK))
    return listed.names


@pytest.mark.parametrize("name", TARGETS)
def test_the_passes_are_those_of_tvm_but_for_planning(name: str):
    assert Target.current(allow_none=True) is None
    target = Target(TARGETS[name])
    ours = names_of(tvm_ext.relax_pipeline(target))
    assert ours.count("tvm_ext.GMEMAllocate") == 1
    own = {
        "hexagon": lambda: relax.get_pipeline("default"),
        "c": lambda: relax.get_default_pipeline(Target("llvm")),
    }
    with target:  # TVM's list for Adreno asks which target is current.
        stock = own.get(name, lambda: relax.get_default_pipeline(target))()
        expected = names_of_within(target, stock)
    if name == "hexagon":
        expected.remove("RewriteCUDAGraph")  # It captures kernels of CUDA, and there are none.
    # TVM's allocators for a CPU take one scope alone: other memories' scopes go behind the plan.
    ours = [n for n in ours if n != "tvm_ext.HostScopes"]
    assert [n.replace("tvm_ext.GMEMAllocate", "StaticPlanBlockMemory") for n in ours] == expected


def names_of_within(target: Target, pipeline: tvm.ir.transform.Pass) -> list[str]:
    with target:
        return names_of(pipeline)


@pytest.mark.parametrize("name", ["c", "hexagon"])
def test_what_tvms_dispatch_leaves_out_is_compared(name: str):
    report = tvm_ext.compare(parse(NETWORK), target=name, view="rewrite")
    assert report.facts
    assert report.is_right
