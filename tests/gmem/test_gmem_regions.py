# SPDX-License-Identifier: Apache-2.0
"""`GMEMAllocate` by hand: weights, regions, and builds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import tvm
import tvm_ffi
from llvm_level import at_level
from relax_programs import parse
from relax_runs import KEPT, build_each, flat, lower, lower_source, planned, run
from saved_json import saved_json
from small_modules import RESHAPES, module, read, weights_module
from sweeps import sample
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline
from tvm.target import Target

import tvm_ext
from passes.gmem.options import GMEMOptions
from passes.gmem.planning.gmem_layout import GMEM, GMEMLayout, Region
from passes.gmem.relax_functions import plan_gmem, write_function
from target_hw.memory import MemoryScope
from tvm_ext import workloads
from tvm_ext.lowering import capture_relax, known_target
from tvm_ext.transform import GMEMAllocate

BRANCHES = """
def main(x: R.Tensor((64, 8), "float32"), c: R.Tensor((), "bool")):
    a = R.nn.relu(x)
    b = R.concat((a, x), axis=0)
    if c:
        d = R.exp(b)
        e = R.sum(d)
    else:
        d = R.concat((b, b), axis=0)
        e = R.max(d)
    return R.add(R.sum(a), e)
"""


def written(func: relax.Function, buffer_of: Mapping[int, str]) -> list[tuple[int, dict[str, int]]]:
    """Return the storages of the IR: bytes, and the offset of each buffer in it."""
    storages: dict[int, tuple[int, dict[str, int]]] = {}
    placed: dict[int, tuple[dict[str, int], int]] = {}

    def read(body: relax.Expr) -> None:
        for block in body.blocks:
            for binding in block.bindings:
                value, handle = binding.value, binding.var.__chandle__()
                if isinstance(value, relax.If):
                    read(value.true_branch)
                    read(value.false_branch)
                operator = getattr(getattr(value, "op", None), "name", "")
                if operator == "relax.memory.alloc_storage":
                    storages[handle] = int(value.args[0].values[0]), {}
                elif operator == "relax.memory.alloc_tensor":
                    placed[handle] = storages[value.args[0].__chandle__()][1], int(value.args[1])
                elif operator == "relax.memory.ensure_zero_offset":
                    placed[handle] = placed.pop(value.args[0].__chandle__())

    read(func.body)
    for handle, (tensors, offset) in placed.items():
        assert tensors.setdefault(buffer_of[handle], offset) == offset
    return list(storages.values())


def plain(storage: tuple[int, dict[str, int]]) -> tuple[int, list[tuple[str, int]]]:
    return storage[0], sorted(storage[1].items())


@pytest.mark.parametrize("kind", ["llvm", "opencl"])
@pytest.mark.parametrize("name", sample(("branches", "squeezenet", "swin_t"), "branches"))
def test_the_attribute_says_what_the_ir_has(name: str, kind: str):
    target = known_target(kind)
    if name == "branches":
        lowered = lower_source(BRANCHES)
    else:
        lowered = capture_relax(workloads.model(name), target)
    for found in plan_gmem(lowered, options=GMEMOptions(target=target)):
        func = write_function(found)
        said = func.attrs["tvm_ext.gmem"]
        there = written(func, found.memory.buffer_of)
        storages = [
            (int(one["bytes"]), {str(t["name"]): int(t["offset"]) for t in one["tensors"]})
            for one in said["storages"]
        ]
        assert sorted(map(plain, storages)) == sorted(map(plain, there))
        region = said["activations"]
        addresses = {
            str(t["name"]): int(t["address"]) - int(region["start"]) for t in region["tensors"]
        }
        if len(there) == 1:
            assert there == [(int(region["bytes"]), addresses)]
        else:
            assert not addresses, "several storages have no common start"
        # The plan that maps and tables show has the same storages, one after the other.
        for _, tensors in there:
            inside = [name for name in tensors if name in found.problem.index]
            starts = {found.plan.offsets[name][0] - tensors[name] for name in inside}
            assert len(starts) <= 1


# ---------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize(
    ("inputs", "weights"), [(4, []), (99, []), (-1, ["x", "w", "v[0]", "v[1]"])]
)
def test_as_many_inputs_as_there_are_no_parameters(inputs, weights):
    """`BindParams` takes parameters away, and leaves the attribute that counts inputs as it is."""
    mod = weights_module()
    mod["main"] = mod["main"].with_attr("num_input", inputs)
    (found,) = plan_gmem(mod)
    assert [one.name for one in found.layout.weights.tensors] == [*weights, "constant_0"]


def test_weights_stand_one_after_the_other_and_activations_behind_them():
    with Target("sophgo/bm1684x-llvm"):
        (found,) = plan_gmem(weights_module(), "rec_tbl")
    base = 0x1_0000_0000
    weights = found.layout.weights
    assert [(w.name, w.address - base, w.size) for w in weights.tensors] == [
        ("w", 0, 256),
        ("v[0]", 0x1000, 3),
        ("v[1]", 0x2000, 4400),
        ("constant_0", 0x4000, 256),
    ]
    assert (weights.start, weights.size) == (base, 0x5000)
    assert found.layout.activations.start == base + 0x5000
    assert found.layout.alignment == 4096
    assert all(t.address % 4096 == 0 for t in found.layout.activations.tensors)


@pytest.mark.parametrize(
    ("chip", "weights", "activations", "alignment"),
    [
        ("bm1684x", 0x1_0000_0000, None, 4096),
        ("bm1684", 0x1_0510_0000, None, 4096),
        ("bm1688", (1 << 39) + (1 << 36), (1 << 39) + (2 << 36), 4096),
        ("bm1690", 1 << 40, 2 << 40, 4096),
        ("cv184x", 0x8000_0000 + (1 << 40), 0x8000_0000 + (2 << 40), 4096),
        ("cv183x", 1 << 40, 0, 16),
        ("cv180x", 1 << 40, 0, 16),
    ],
)
@pytest.mark.parametrize("twin", ["", "-llvm"])
def test_regions_and_alignment_are_the_chips(
    chip: str, weights: int, activations: int | None, alignment: int, twin: str
):
    (found,) = plan_gmem(
        weights_module(), "rec_tbl", GMEMOptions(target=Target(f"sophgo/{chip}{twin}"))
    )
    layout = found.layout
    assert (layout.weights.start, layout.alignment) == (weights, alignment)
    expected = layout.weights.end if activations is None else activations
    assert layout.activations.start == expected
    # TVM's own runtime cannot pass on a tensor at less than 64 bytes; the chip's may.
    unit = max(alignment, 64) if twin else alignment
    assert found.problem.memory.alignment == unit
    assert all((t.address - expected) % unit == 0 for t in layout.activations.tensors)


def test_what_is_reserved_elsewhere_and_no_activations_are_in_nobodys_way():
    reserved = ((0, 0x1000), (0x6000, 0x7000))
    scope = MemoryScope("global", 0x8000, reserved=reserved)
    for base, weights, found in (
        (None, Region(0x1000, 0x800), (0x1800, ((0x4800, 0x5800),))),
        (0x1000, Region(1 << 40, 0x2800), (0x1000, ((0x5000, 0x5800),))),
        (0x1000, Region(1 << 40, 0x4000), (0x1000, ())),
    ):
        chip = GMEM(scope, 256, 256, weights.start, base)
        start, behind = chip.memory_behind(weights, ())
        assert (start, behind.reserved) == found
    GMEMLayout("best", 256, Region(0, 0x2000), Region(0x1000, 0))


def test_base_and_alignment_can_be_given():
    (found,) = plan_gmem(weights_module(), "rec_tbl", GMEMOptions(alignment=256, base=1 << 33))
    assert [w.address for w in found.layout.weights.tensors] == [
        (1 << 33) + offset for offset in (0, 256, 512, 512 + 4608)
    ]
    (plain,) = plan_gmem(weights_module(), "rec_tbl")
    assert (plain.layout.weights.start, plain.layout.alignment) == (0, 64)


def test_functions_have_their_weights_in_one_region_and_share_constants():
    constant = relax.const(np.arange(64, dtype="float32"))
    builder = relax.BlockBuilder()
    for name in ("prefill", "decode"):
        x, w = (relax.Var(n, relax.TensorType((64,), "float32")) for n in "xw")
        with builder.function(name, [x, w], attrs={"num_input": 1}):
            a = builder.emit(relax.op.add(x, w))
            builder.emit_func_output(builder.emit(relax.op.add(a, constant)))
    decode, prefill = plan_gmem(lower(builder.get()), "best")
    at = {
        (p.memory.name, w.name): w.address
        for p in (decode, prefill)
        for w in p.layout.weights.tensors
    }
    assert at == {
        ("decode", "w"): 0,
        ("decode", "constant_0"): 256,
        ("prefill", "w"): 512,
        ("prefill", "constant_0"): 256,
    }
    assert decode.layout.weights.end == prefill.layout.weights.end == 768
    # Neither calls the other, so their activations may stand in the same memory.
    assert decode.layout.activations.start == prefill.layout.activations.start == 768


def test_bytes_do_not_end_at_32_bits():
    found = read(
        module(
            """
a = R.nn.relu(x)
b = R.negative(a)
c = R.sum(b)
return c
""",
            'x: R.Tensor((131072, 65536), "float32")',
        )
    )
    assert found.plan.peak == 2 << 35
    ours = planned(
        module(
            "a = R.nn.relu(x)\nb = R.sum(a)\nreturn b", 'x: R.Tensor((131072, 65536), "float32")'
        ),
        GMEMAllocate("best", base=1 << 40),
    )
    assert ours["main"].attrs["tvm_ext.gmem"]["activations"]["bytes"] == 1 << 35
    assert f"R.shape([{1 << 35}])" in ours["main"].script()


def test_the_layout_survives_text_and_json():
    ours = planned(weights_module(), GMEMAllocate("best", base=1 << 40))
    layout = ours["main"].attrs["tvm_ext.gmem"]
    assert layout["weights"]["tensors"]
    assert layout["activations"]["tensors"]
    loaded = tvm.ir.load_json(saved_json(ours))["main"].attrs["tvm_ext.gmem"]
    assert tvm_ffi.structural_equal(loaded, layout)
    # TVM does not read `R.builtin.alloc_tensor` as it prints it, so text is tried without.
    x = relax.Var("x", relax.TensorType((64,), "float32"))
    plain = relax.Function([x], relax.SeqExpr([], x), x.ty).with_attr({"tvm_ext.gmem": layout})
    text = plain.with_attr("global_symbol", "main").script()
    assert tvm_ffi.structural_equal(tvm.script.from_source(text).attrs["tvm_ext.gmem"], layout)


# -------------------------------------------------------------------------------------- the build


def test_planned_modules_build_and_run_in_tvms_pipeline():
    mod = parse(RESHAPES)
    for target in ("llvm", "sophgo/bm1684x-llvm", "sophgo/cv181x-llvm"):
        pipeline = tvm_ext.relax_pipeline(target)
        vm = relax.VirtualMachine(
            tvm.compile(mod, at_level(target), relax_pipeline=pipeline), tvm.cpu()
        )
        x = np.arange(32, dtype="float32").reshape(4, 8)
        for taken in (True, False):
            np.testing.assert_array_equal(run(vm, "main", [x, np.array(taken)])[0], x)


RETURNED = {
    "itself": "return e",
    "what a packed function keeps": """
k = R.call_packed("test.gmem.keep", c, ty_args=R.Tensor((32, 64), "float32"))
return (e, R.negative(k))
""",
    "a reshape": "return R.reshape(e, (64, 64))",
    "a view": 'v = R.memory.view(e, R.shape([4096]), R.dtype("float32"), 0)\nreturn v',
    "a tuple": "return (R.reshape(e, (4096,)), (e, d))",
    "what a branch makes": """
q = R.greater(R.sum(x), R.const(0.0, "float32"))
if q:
    r = R.exp(e)
else:
    r = R.abs(e)
return r
""",
}


@pytest.mark.parametrize("how", RETURNED)
def test_a_result_in_whose_memory_others_stood_is_intact_after_the_next_call(how: str):
    body = """
a = R.nn.relu(x)
b = R.negative(a)
c = R.exp(b)
d = R.negative(c)
e = R.concat((d, d), axis=0)
"""
    lowered = module(body + RETURNED[how], 'x: R.Tensor((32, 64), "float32")')
    (found,) = plan_gmem(lowered)
    results = {buffer.name for buffer in found.memory.main.returned}
    shared = [piece for piece in found.placement[0] if results & set(piece.offsets)]
    assert any(len(piece.offsets) > 1 for piece in shared) or "make" in how or "keep" in how
    relax.analysis.well_formed(planned(lowered, GMEMAllocate()))
    plain, ours = build_each(lowered, None, GMEMAllocate())
    KEPT.clear()
    kept = []
    for seed in (0, 1, 2):
        x = np.random.default_rng(seed).standard_normal((32, 64), dtype="float32")
        mine = flat(ours["main"](tvm.runtime.tensor(x)))
        kept += zip(mine, run(plain, "main", [x]), strict=True)
    for tensor, expected in [*kept, *KEPT]:
        np.testing.assert_array_equal(tensor.numpy(), expected)


def test_a_chip_without_a_code_generator_has_no_pipeline():
    with pytest.raises(ValueError, match="no Relax pipeline for targets of kind 'ext_dev'"):
        tvm_ext.relax_pipeline("sophgo/bm1684x")


def test_a_pipeline_without_the_stock_pass_is_an_error(monkeypatch: pytest.MonkeyPatch):
    finalize = pipeline.finalize_passes
    monkeypatch.setattr(pipeline, "dataflow_lower_passes", lambda _target: [])
    monkeypatch.setattr(pipeline, "finalize_passes", lambda target: finalize(target)[-1:])
    with pytest.raises(ValueError, match=r"must have StaticPlanBlockMemory once.*LegalizeOps"):
        tvm_ext.relax_pipeline("llvm")
