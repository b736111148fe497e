# SPDX-License-Identifier: Apache-2.0
"""The workloads themselves: enough of them, distinct, repeatable, and giving a planner work."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import corpus as functions
import numpy as np
import pytest
import tvm
import tvm_ffi
from corpus import Entry
from llvm_level import at_level
from network_inputs import inputs_of
from tvm import relax, tirx

from tvm_ext import lowering, workloads
from tvm_ext.programs import load_program

TESTS = Path(__file__).parents[1]

# One workload of each kind and road: unscheduled, scheduled by rules and by hand, written out.
SAMPLE = ("softmax", "chain", "gpu_matmul", "software_pipeline", "opaque_calls", "dynamic_shape")


def function_of(mod: tvm.IRModule) -> tirx.PrimFunc:
    ((_, function),) = mod.functions.items()
    return function


def used_allocations(function: tirx.PrimFunc) -> list[int]:
    """Give the nesting depth of each allocation whose buffer the function mentions again."""
    uses: set[tvm.ir.Var] = set()

    def note(var: tvm.ir.Var, kind: Any) -> None:
        if kind == tvm_ffi.DefRegionKind.NONE:
            uses.add(var)

    tvm_ffi.structural_walk(function.body, with_def_region_kind=(tvm.ir.Var, note))
    return sorted(depth for buffer, depth in _allocations(function.body, 0) if buffer in uses)


def _allocations(statement: Any, depth: int) -> Iterator[tuple[tvm.ir.Var, int]]:
    if isinstance(statement, tirx.AllocBuffer):
        yield statement.buffer, depth
    elif isinstance(statement, tirx.SeqStmt):
        for child in statement.seq:
            yield from _allocations(child, depth)
    else:
        for field in ("body", "then_case", "else_case"):
            child = getattr(statement, field, None)
            if child is not None:
                yield from _allocations(child, depth + 1)


def stock(entry: Entry) -> tirx.PrimFunc:
    with tvm.transform.PassContext(config=entry.config):
        return function_of(tirx.transform.StorageRewrite()(entry.mod))


def test_used_allocations_counts_what_is_there():
    mod = functions.load("elements")
    # A buffer that nothing mentions is no allocation to merge.
    assert used_allocations(mod["never_read"]) == [0, 0]
    assert used_allocations(mod["several_scopes"]) == [0, 0, 0, 0]
    assert used_allocations(functions.load("loops")["loops_in_sequence"]) == [1, 1]


def test_corpus_is_large_and_distinct(corpus: list[Entry]):
    names = [entry.name for entry in corpus]
    assert len(set(names)) == len(names)
    bare = [
        function_of(entry.mod).without_attr("global_symbol").without_attr("target")
        for entry in corpus
    ]
    # Two that differ in their name or target only count once here.
    distinct = {tvm_ffi.structural_hash(function, map_free_vars=True) for function in bare}
    assert len(distinct) >= 400


def test_corpus_has_every_workload(corpus: list[Entry]):
    there = {entry.name.split("[")[0] for entry in corpus}
    assert set(functions.WORKLOADS) == there


def test_stock_pass_has_work_on_much_of_the_corpus(corpus: list[Entry]):
    merged = moved = 0
    for entry in corpus:
        before = used_allocations(function_of(entry.mod))
        after = used_allocations(stock(entry))
        assert len(after) <= len(before), entry.name
        merged += len(after) < len(before)
        moved += len(after) == len(before) and after != before
    assert merged >= 100
    assert moved >= 20


def test_corpus_spans_targets_and_types(corpus: list[Entry]):
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


@pytest.mark.parametrize("name", SAMPLE)
def test_building_twice_gives_the_same(corpus: list[Entry], name: str, pytestconfig: pytest.Config):
    every_target = str(pytestconfig.option.markexpr) == "slow"
    made = functions.entries([name], every_target=every_target)
    again = {entry.name: entry for entry in made}
    # Of functions that are equal in several workloads, the corpus has the first.
    first = [entry for entry in corpus if entry.name.startswith(f"{name}[")]
    assert first
    for entry in first:
        tvm.ir.assert_structural_equal(entry.mod, again[entry.name].mod, map_free_vars=True)
        assert entry.config == again[entry.name].config


@pytest.mark.slow
def test_another_process_builds_the_same(corpus: list[Entry]):
    program = (
        "import hashlib, sys; sys.path.insert(0, sys.argv[1]); from corpus import entries;"
        "text = ''.join(e.name + e.mod.script() for e in entries());"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, str(TESTS)], capture_output=True, text=True, check=True
    )
    text = "".join(entry.name + entry.mod.script() for entry in corpus)
    assert process.stdout.strip() == hashlib.sha256(text.encode()).hexdigest()


def test_every_workload_has_known_targets():
    for name in functions.WORKLOADS:
        workload = functions.WORKLOADS[name]
        assert workload.name == name
        assert workload.targets
        assert set(workload.targets) <= set(lowering.TARGETS)


@pytest.mark.parametrize("name", ["softmax", "gpu_matmul", "branches"])
def test_load_gives_the_functions_of_the_corpus(name: str):
    mod = functions.load(name)
    target = functions.WORKLOADS[name].targets[0]
    found = functions.entries([name], every_target=False)
    labels = {entry.name for entry in found if entry.target == target}
    assert labels == {f"{name}[{target},{v.name_hint}]" for v in mod.get_global_vars()}


def test_capture_is_what_the_pass_is_given():
    """The rest of the pipeline, run on the captured module, builds a program that works."""
    x = np.random.default_rng(0).standard_normal((24, 40), dtype="float32")
    function = functions.load("chain")["3_float32"]
    pipeline = tvm.transform.Sequential([tirx.transform.StorageRewrite()])
    mod = pipeline(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))
    compiled = tvm.compile(mod, at_level("llvm"))
    out = tvm.runtime.empty((24, 40), "float32")
    compiled["main"](tvm.runtime.tensor(x), out)
    expected = x
    for i in range(3):
        expected = (expected + np.float32(i + 1)) * expected
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5)


def test_capture_leaves_its_input_alone():
    mod = workloads.model("bert_layer")
    text = mod.script()
    lowering.capture(mod, "llvm")
    assert mod.script() == text


def test_capture_uses_the_options_in_force():
    unscheduled = functions.WORKLOADS["matmul_tiled"].build(lowering.known_target("llvm"))
    config = {"tirx.disable_vectorize": True}
    with tvm.transform.PassContext(config=config):
        given = lowering.capture(unscheduled, "llvm")[-1]
    assert not tvm_ffi.structural_equal(given, lowering.capture(unscheduled, "llvm")[-1])


def test_capture_says_when_there_is_nothing_to_capture():
    branches = functions.WORKLOADS["branches"].build(lowering.known_target("llvm"))
    with (
        tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}),
        pytest.raises(ValueError, match=r"never ran tirx\.StorageRewrite"),
    ):
        lowering.capture(branches, "llvm")


def test_errors_of_lowering_pass_through(monkeypatch: pytest.MonkeyPatch):
    def broken(_mod: Any, _context: Any) -> Any:
        raise KeyError("mine")

    failing = tvm.transform.module_pass(broken, opt_level=0, name="broken")
    monkeypatch.setattr(relax, "get_default_pipeline", lambda _target: failing)
    with pytest.raises(KeyError, match="mine"):
        lowering.capture(workloads.model("bert_layer"), "llvm")


def test_unknown_name_lists_close_ones():
    with pytest.raises(ValueError, match="'resnet18'"):
        load_program("resnet")
    with pytest.raises(ValueError, match="unknown model 'softmax'; the models are resnet18"):
        workloads.model("softmax")


@pytest.mark.slow
@pytest.mark.parametrize("name", functions.MODELS)
def test_a_model_runs(name: str):
    executable = tvm.compile(workloads.model(name), at_level("llvm"))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    arguments = [tvm.runtime.tensor(value) for value in inputs_of(workloads.MODELS[name], 0)]
    out = machine["forward"](*arguments).numpy()
    assert np.isfinite(out).all()
    # Neither did the signal die on the way nor did it blow up.
    assert 0.01 < out.std() < 100.0


def convolutions(*widths: int, kernel: int = 9, norm: int = 2) -> int:
    """Count the weights of a chain of convolutions: kernels, and `norm` numbers a channel."""
    return sum(kernel * a * b + norm * b for a, b in pairwise(widths))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet18", 11_689_512),  # torchvision's
        ("mobilenet_v2", 3_504_872),  # torchvision's
        ("bert_base", 109_482_240),  # bert-base-uncased's
        (
            "llama_8_layers",
            2 * 32000 * 2048
            + 2048
            + 8 * (2 * 2048 * 2048 + 2 * 2048 * 256 + 3 * 2048 * 5632 + 2 * 2048),
        ),
        (
            "unet",
            convolutions(3, 64, 64, 128, 128, 256, 256, 512, 512, 1024, 1024)
            + sum(convolutions(2 * w, w, kernel=4, norm=0) for w in (512, 256, 128, 64))
            + sum(convolutions(2 * w, w, w) for w in (512, 256, 128, 64))
            + 2 * 64
            + 2,
        ),
    ],
)
def test_networks_have_as_many_weights_as_the_papers_say(name: str, count: int):
    assert name in workloads.NETWORKS
    function = workloads.model(name)["forward"]
    inputs = int(function.attrs["num_input"])
    shapes = [[int(d) for d in param.ty.shape] for param in function.params[inputs:]]
    assert sum(math.prod(shape) for shape in shapes) == count


def test_token_numbers_are_in_the_vocabulary():
    model = replace(workloads.MODELS["bert_base"], arguments=(1, 8, 2, 8, 50))
    tokens, *weights = inputs_of(model, seed=3)
    assert tokens.dtype == np.int32
    assert 0 <= tokens.min() <= tokens.max() < 50
    assert all(weight.dtype == np.float32 for weight in weights)


# ---------------------------------------------------------------------------- before Relax plans


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_capture_relax_is_what_the_stock_pipeline_plans(target: str):
    """The stock pass, run on what was captured, gives what the whole pipeline gives."""
    mod = workloads.model("bert_layer")
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


def test_capture_relax_without_fusion_keeps_each_operator():
    mod = workloads.model("bert_layer")
    fused, plain = (lowering.capture_relax(mod, "llvm", fuse=f) for f in (True, False))
    assert any(v.name_hint.startswith("fused_") for v in fused.get_global_vars())
    assert not any(v.name_hint.startswith("fused_") for v in plain.get_global_vars())


def test_capture_relax_says_when_there_is_no_relax():
    with pytest.raises(ValueError, match="capture_relax: there is no Relax function"):
        lowering.capture_relax(functions.load("chain"), "llvm")
