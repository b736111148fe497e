# SPDX-License-Identifier: Apache-2.0
"""The workloads themselves: enough of them, distinct, repeatable, and giving a planner work."""

from __future__ import annotations

import hashlib
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import corpus as functions
import pytest
import tvm
import tvm_ffi
from chain import NETWORK
from corpus import Entry
from tvm import relax, tirx

from tvm_ext import lowering, workloads

TESTS = Path(__file__).parents[1]


def function_of(mod: tvm.IRModule) -> tirx.PrimFunc:
    ((_, function),) = mod.functions.items()
    return function


@pytest.mark.slow
def test_corpus_is_large_and_distinct_and_spans_targets_and_types(corpus: list[Entry]):
    names = [entry.name for entry in corpus]
    assert len(set(names)) == len(names)
    bare = [
        function_of(entry.mod).without_attr("global_symbol").without_attr("target")
        for entry in corpus
    ]
    # Two that differ in their name or target only count once here.
    distinct = {tvm_ffi.structural_hash(function, map_free_vars=True) for function in bare}
    assert len(distinct) >= 200
    assert set(functions.WORKLOADS) == {entry.name.split("[")[0] for entry in corpus}
    assert {entry.target for entry in corpus} >= {"llvm", "c", "cuda", "vulkan", "metal", "webgpu"}
    dtypes: set[str] = set()
    scopes: set[str] = set()

    def note(allocation: tirx.AllocBuffer) -> None:
        dtypes.add(str(allocation.buffer.ty.dtype))
        scopes.add(str(allocation.buffer.ty.storage_scope))

    for entry in corpus:
        tvm_ffi.structural_walk(entry.mod, (tirx.AllocBuffer, note))
    assert dtypes >= {"float32", "float16", "float64", "int32", "int8", "uint8"}
    assert scopes >= {"global", "local", "shared", "shared.dyn", "local.UB", "local.L1"}


@pytest.mark.slow
def test_another_process_builds_the_same(corpus: list[Entry]):
    program = (
        "import hashlib, sys; sys.path[:0] = sys.argv[1:]; from corpus import entries;"
        "text = ''.join(e.name + e.mod.script() for e in entries());"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    command = [sys.executable, "-c", program, str(TESTS), str(TESTS / "lib")]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    text = "".join(entry.name + entry.mod.script() for entry in corpus)
    assert process.stdout.strip() == hashlib.sha256(text.encode()).hexdigest()


def test_capture_says_when_there_is_nothing_to_capture():
    branches = functions.WORKLOADS["branches"].build(lowering.known_target("llvm"), 1)
    with (
        tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}),
        pytest.raises(ValueError, match=r"never ran tirx\.StorageRewrite"),
    ):
        lowering.capture(branches, "llvm")


def test_an_unknown_network_is_refused_with_those_that_are_known():
    with pytest.raises(ValueError, match="unknown network 'softmax'; the networks are resnet18"):
        workloads.model("softmax")


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet18", 11_689_512),  # as torchvision says of each
        ("mobilenet_v2", 3_504_872),
        ("densenet121", 7_978_856),
        ("bert_base", 109_482_240),  # bert-base-uncased's
    ],
)
def test_networks_have_as_many_weights_as_their_authors_say(name: str, count: int):
    function = workloads.NETWORKS[name].build()["main"]
    inputs = int(function.attrs["num_input"])
    # The statistics of a batch normalization are no weights.
    weights = [
        param
        for param in function.params[inputs:]
        if not re.search(r"running_(mean|var)|num_batches_tracked|position_ids", str(param.name))
    ]
    assert sum(math.prod(int(d) for d in param.ty.shape) for param in weights) == count


def test_every_network_says_what_it_is_and_where_it_comes_from():
    for name, network in workloads.NETWORKS.items():
        assert network.name == name
        assert network.description
        package, version = network.source.split()
        assert package in ("torchvision", "transformers")
        assert re.fullmatch(r"\d+\.\d+\.\d+", version)
        assert network.licence in ("BSD-3-Clause", "Apache-2.0")


@pytest.mark.slow
@pytest.mark.parametrize("name", workloads.NETWORKS)
def test_every_network_lowers_for_a_cpu_and_a_gpu(name: str):
    for target in workloads.NETWORK_TARGETS:
        assert lowering.capture_relax(workloads.model(name), target)["main"]


# ---------------------------------------------------------------------------- before Relax plans


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_capture_relax_is_what_the_stock_pipeline_plans(target: str):
    """The stock pass, run on what was captured, gives what the whole pipeline gives."""
    mod = tvm.script.from_source(NETWORK)
    text = mod.script()
    resolved = lowering.known_target(target)
    planned: list[tvm.IRModule] = []

    @tvm.ir.instrument.pass_instrument
    class Record:
        def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
            if info.name == "StaticPlanBlockMemory":
                planned.append(mod)

    with tvm.transform.PassContext(instruments=[Record()]), resolved:
        relax.get_default_pipeline(resolved)(mod)
    captured = lowering.capture_relax(mod, target)
    (expected,) = planned
    tvm.ir.assert_structural_equal(relax.transform.StaticPlanBlockMemory()(captured), expected)
    assert mod.script() == text


def test_capture_relax_says_when_there_is_no_relax():
    with pytest.raises(ValueError, match="there is no Relax function in the module"):
        lowering.capture_relax(functions.load("chain"), "llvm")
