# SPDX-License-Identifier: Apache-2.0
"""Our StorageRewrite in TVM's builds: it runs there, and the programs compute the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tvm
from chain import NETWORK
from llvm_level import at_level
from network_inputs import entry_of, inputs_of
from program_text import program
from tvm import relax, tirx
from written_networks import WRITTEN, Model

import tvm_ext
from tvm_ext import lowering, workloads
from tvm_ext.pipeline import address_pipeline, ascend_pipeline
from tvm_ext.report.readers.rewrites import allocations

NARROW = replace(WRITTEN["llama_layer"], arguments=(4, 2, 96), shape=(1, 16, 64))
"""A Llama layer with little to compute."""


@tvm.ir.instrument.pass_instrument
class PassRecorder:
    """Notes which StorageRewrite passes run."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_before_pass(self, _mod: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
        if "StorageRewrite" in info.name:
            self.names.append(str(info.name))


def storage_rewrites(build: Callable[[], object]) -> set[str]:
    """Return the names of the StorageRewrite passes that a build runs."""
    recorder = PassRecorder()
    with tvm.transform.PassContext(instruments=[recorder]):
        build()
    return set(recorder.names)


two_steps = program("""
def two_steps(source: 64, result: 64):
    first, second: global 64
    first[i] = source[i] + T.float32(1) for i in range(64)
    second[i] = first[63 - i] * T.float32(2) for i in range(64)
    result[i] = second[i] - source[i] for i in range(64)
""")


def run_two_steps(lib: Callable[..., None]) -> None:
    source = np.random.default_rng(0).standard_normal(64).astype("float32")
    result = tvm.runtime.tensor(np.zeros(64, "float32"))
    lib(tvm.runtime.tensor(source), result)
    np.testing.assert_allclose(result.numpy(), (source[::-1] + 1) * 2 - source, rtol=1e-6)


def test_the_context_manager_replaces_the_pass_and_puts_it_back():
    mod = tvm.IRModule({"main": two_steps})
    stock = tirx.transform.StorageRewrite

    def build() -> None:
        run_two_steps(tirx.build(mod, target="llvm"))

    with tvm_ext.use("StorageRewrite"):
        assert storage_rewrites(build) == {"tvm_ext.StorageRewrite"}
    assert tirx.transform.StorageRewrite is stock
    assert storage_rewrites(build) == {"tirx.StorageRewrite"}

    with pytest.raises(KeyError), tvm_ext.use("StorageRewrite"):
        raise KeyError
    assert tirx.transform.StorageRewrite is stock


def test_the_context_manager_passes_its_options_on():
    mod = lowering.capture(tvm.IRModule({"main": two_steps}), "llvm")

    def num_allocs() -> int:
        text = tirx.transform.StorageRewrite()(mod).script()
        return text.count("alloc_buffer")

    with tvm_ext.use("StorageRewrite"):
        shared = num_allocs()
    with tvm_ext.use("StorageRewrite", enable_reuse=False, detect_inplace=False):
        assert num_allocs() == 2 >= shared


def compile_stock(mod: tvm.IRModule, **options: str) -> relax.VMExecutable:
    return tvm.compile(mod, target=at_level("llvm"), **options)


compile_pipeline = partial(compile_stock, tir_pipeline="tvm_ext")


def compile_context(mod: tvm.IRModule) -> relax.VMExecutable:
    with tvm_ext.use("StorageRewrite"):
        return compile_stock(mod)


# By default one small model takes both ways in: that the pass makes of all kernels of the others
# what the stock pass makes of them is tested on the corpus.
LARGE = ("resnet18", "bert", "mobilenet_v2")


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(NARROW, id="narrow"),
        *(pytest.param(workloads.NETWORKS[m], id=m, marks=pytest.mark.slow) for m in LARGE),
    ],
)
def test_models_compute_the_same(model: Model | workloads.ExportedNetwork):
    mod, arrays = model.build(), inputs_of(model.build(), 1)
    results = []
    for compile_model, expected in (
        (compile_stock, "tirx.StorageRewrite"),
        (compile_pipeline, "tvm_ext.StorageRewrite"),
        (compile_context, "tvm_ext.StorageRewrite"),
    ):
        built: list[relax.VMExecutable] = []
        ran = storage_rewrites(lambda: built.append(compile_model(mod)))  # noqa: B023
        assert ran == {expected}
        machine = relax.VirtualMachine(built[0], tvm.cpu())
        result = machine[entry_of(mod)](*map(tvm.runtime.tensor, arrays))
        tensors = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        results.append([tensor.numpy() for tensor in tensors])
    for result in results[1:]:
        np.testing.assert_equal(result, results[0])


def test_a_wrong_option_is_refused_before_anything_is_built():
    with pytest.raises(TypeError, match="mode"), tvm_ext.use("AscendPlanMemory", mode="x"):
        pass
    with pytest.raises(TypeError, match="plannr"), tvm_ext.use("PlanAddresses", plannr="best"):
        pass
    strategy = tvm_ext.use("AscendPlanMemory", strategy="smallest")
    with pytest.raises(ValueError, match="strategy must be"), strategy:
        pass
    for make, option in (
        (partial(address_pipeline, "arena"), {"alignmnt": 64}),
        (ascend_pipeline, {"mode": "local-mem-plan"}),
        (partial(tvm_ext.relax_pipeline, "llvm"), {"alignmnt": 64}),
    ):
        with pytest.raises(TypeError, match=next(iter(option))):
            make(**option)
    with pytest.raises(ValueError, match="relax_pipeline: fuse must be True or False"):
        tvm_ext.relax_pipeline("llvm", fuse="no")


@pytest.mark.parametrize("pipeline", ["tvm_ext", "tvm_ext.address", "tvm_ext.ascend"])
def test_a_scope_that_tvm_does_not_know_is_refused_by_the_buffers_name(pipeline: str):
    func = program("""
    def main(x: 8, y: 8):
        near = T.alloc_buffer((8,), "float32", scope="UB")
        near[i] = x[i] for i in range(8)
        y[i] = near[7 - i] for i in range(8)
    """)
    mod = tvm.IRModule({"main": func})
    with pytest.raises(
        ValueError, match="function 'main': buffer 'near': unknown storage scope 'U"
    ):
        tirx.build(mod, target="ascend/910b-llvm", pipeline=pipeline)


a_row_each = program("""
def a_row_each(x: 256, y: 256):
    T.func_attr({"tirx.noalias": True})
    for p in T.parallel(4):
        a, b, c: global 64
        a[i] = x[p * 64 + i] for i in range(64)
        b[i] = a[63 - i] for i in range(64)
        c[i] = b[63 - i] for i in range(64)
        y[p * 64 + i] = c[63 - i] for i in range(64)
""")


@tvm.ir.instrument.pass_instrument
class AllocatedBytes:
    """Notes the bytes that are allocated behind storage planning."""

    def __init__(self) -> None:
        self.total = 0

    def run_after_pass(self, mod: tvm.IRModule, info: tvm.ir.transform.PassInfo) -> None:
        if info.name == "tirx.RemoveNoOp":
            self.total = sum(found.nbytes for found in allocations(mod).values())


def test_no_pipeline_allocates_more_than_the_stock_one():
    taken = {}
    for pipeline in ("default", "tvm_ext.address", "tvm_ext.arena", "tvm_ext.ascend"):
        allocated = AllocatedBytes()
        with tvm.transform.PassContext(instruments=[allocated]):
            mod = tvm.IRModule({"main": a_row_each.with_attr("global_symbol", "main")})
            library = tirx.build(mod, target=at_level("llvm"), pipeline=pipeline)
        x = np.arange(256, dtype="float32")
        y = tvm.runtime.tensor(np.zeros(256, "float32"))
        library["main"](tvm.runtime.tensor(x), y)
        np.testing.assert_array_equal(y.numpy(), x.reshape(4, 64)[:, ::-1].reshape(-1))
        taken[pipeline] = allocated.total
    assert set(taken.values()) == {512}, taken


def test_the_relax_pipeline_has_a_name_in_tvm():
    """It is that of the target that is built for, and takes its options as TVM's pipelines do."""
    mod = tvm.script.from_source(NETWORK)
    with tvm.target.Target("llvm"):
        by_name = relax.get_pipeline("tvm_ext", fuse=False)(mod)
        own = tvm_ext.relax_pipeline("llvm", fuse=False)(mod)
    tvm.ir.assert_structural_equal(by_name, own)


def test_what_has_no_place_is_refused():
    with pytest.raises(ValueError, match="use: no pass 'LayerGroup' has a place; there are: Stor"):
        tvm_ext.use("LayerGroup")
