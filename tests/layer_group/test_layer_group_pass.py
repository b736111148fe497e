# SPDX-License-Identifier: Apache-2.0
"""The pass `LayerGroup`, from options to a build, and what it reports."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tvm
from llvm_level import at_level
from operator_modules import arrays, call, check_same, kernels, lowered, module, run
from sweeps import sample
from test_group_kernels import NETWORKS, chain
from tvm import relax
from tvm.ir.transform import Sequential
from tvm.target import Target

from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem
from passes.layer_group import transform as layer_group
from target_hw.memory import MemoryHierarchy, MemoryScope
from target_hw.sophgo import MACHINES
from target_hw.target import register_chip, with_machine
from tvm_ext import transform
from tvm_ext.relax_passes import relax_pipeline, relax_stages
from tvm_ext.report.readers.groups import layer_groups

CHIP = "sophgo/cv181x-llvm"

TINY = "test/tiny-lanes"
FACTS = (("eu_bytes", 16), ("lanes", 4))
LOCAL = MemoryScope("local.LMEM", 4096, alignment=16, facts=FACTS)
MEMORY = MemoryHierarchy((LOCAL, MemoryScope("global", alignment=64)))
register_chip(TINY, MEMORY, override=True)


def build(mod, target=CHIP, **options):
    pipeline = relax_pipeline(target, **options)
    executable = tvm.compile(mod, target=at_level(target), relax_pipeline=pipeline)
    return relax.VirtualMachine(executable, tvm.cpu())


@pytest.mark.parametrize("name", sample(NETWORKS, "residual", "skip over a scale", "transformer"))
def test_a_network_built_with_groups_gives_the_same(name):
    mod = NETWORKS[name]()
    target = f"{TINY}-llvm"
    report = layer_groups(mod, target)
    assert report.groups
    plain, grouped = build(mod, target), build(mod, target, layer_group=True)
    for seed in (0, 1):
        args = arrays(mod, seed)
        check_same(call(grouped, args), call(plain, args))


@pytest.mark.parametrize(
    "options",
    [
        {"search": "tail_to_head", "halo": "keep"},
        {"search": "dynamic_programming", "halo": "recompute"},
        {"planner": "lmem"},
    ],
)
def test_searches_halos_and_planners_give_the_same_numbers(options):
    mod = chain(batch=2)
    args = arrays(mod)
    grouped = build(mod, f"{TINY}-llvm", layer_group=options)
    check_same(call(grouped, args), run(mod, args))


def test_the_pass_takes_operators_that_are_not_lowered():
    mod = chain()
    before = mod.script()
    grouped = transform.LayerGroup(f"{TINY}-llvm")(mod)
    assert mod.script() == before
    args = arrays(mod)
    check_same(run(grouped, args), run(mod, args))
    assert any("group" in name for name in kernels(grouped))


def test_two_runs_give_the_same_module():
    mod = lowered(NETWORKS["skip over a scale"](), fuse=True)
    for form in ("address", "arena"):
        first, second = (transform.LayerGroup(TINY, form=form)(mod) for _ in range(2))
        assert first.script() == second.script()


def test_a_backend_gets_addresses_and_a_cpu_an_arena():
    mod = lowered(chain(), fuse=True)
    for target, form, expected in (
        (TINY, None, "allocated_addr"),
        (f"{TINY}-llvm", None, "arena_local_LMEM.data"),
        (TINY, "arena", "arena_local_LMEM.data"),
        (f"{TINY}-llvm", "address", "allocated_addr"),
    ):
        grouped = transform.LayerGroup(target, form=form)(mod)
        text = "".join(f.script() for n, f in kernels(grouped).items() if "group" in n)
        assert expected in text


def test_global_memory_holds_inputs_and_outputs_of_groups_alone():
    mod = chain()
    target = Target(f"{TINY}-llvm")
    stages = relax_stages(target)
    tensors, sizes = {}, {}
    for name, groups in (("plain", []), ("grouped", [transform.LayerGroup(target)])):
        with target:
            ready = Sequential([*stages.first, *groups, *stages.lower])(mod)
        (planned,) = plan_gmem(ready, "best", GMEMOptions(target=target))
        tensors[name] = len(planned.memory.main.problem.buffers)
        sizes[name] = planned.plan.peak
    assert tensors["grouped"] < tensors["plain"]
    assert sizes["grouped"] < sizes["plain"]


def test_the_report_adds_up():
    mod = chain(batch=2)
    report = layer_groups(mod, TINY, halo="keep")
    layers = [name for group in report.groups for name in group.layers]
    layers += [left.layer for left in report.left]
    fused = layer_groups(mod, "llvm")
    assert sorted(layers) == sorted(left.layer for left in fused.left)
    for group in report.groups:
        assert 0 < group.lmem_peak <= group.lmem_capacity == 4096
        assert group.n_slices >= 1
        assert group.h_slices >= 1
        assert group.moved > 0
        assert len(group.layers) == len(group.operators) > 1
    assert report.moved_least <= report.moved_after < report.moved_before
    assert report.makespan_after > 0


def test_a_target_without_local_memory_groups_nothing():
    mod = lowered(chain(), fuse=True)
    assert transform.LayerGroup("llvm")(mod).script() == mod.script()
    report = layer_groups(mod, "llvm")
    assert report.groups == ()
    assert len(report.left) > 1
    assert {left.reason for left in report.left} == {"the target has no memory 'local.LMEM'"}
    assert report.moved_after == report.moved_before


def test_a_layer_that_does_not_fit_says_so():
    # With channels last the sum over channels is not the outermost one, and comes in no parts.
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
    mod = module(
        [(1, 20, 20, 64), (3, 3, 64, 64)],
        lambda emit, x, w: emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, w, **layouts)))),
    )
    report = layer_groups(mod, TINY, fuse=False)
    reasons = {left.layer.split(":")[0]: left.reason for left in report.left}
    assert "bytes a lane of local.LMEM at its smallest slice" in reasons["conv2d"]
    assert "4608 of weights, " in reasons["conv2d"]
    assert reasons["conv2d"].endswith("; 4096 are available")


def test_adjacent_blocks_that_another_pass_left_apart_are_each_grouped():
    """TVM makes one block of them when it rebuilds the function: numbers of blocks change then."""
    builder = relax.BlockBuilder()
    shapes = {"x": (1, 4, 12, 12), "w": (4, 4, 3, 3)}
    x, w = (relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in shapes.items())
    ends = []
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        for _ in range(3):
            with builder.dataflow():
                start = ends[-1] if ends else x
                y = builder.emit(relax.op.nn.conv2d(start, w, padding=1))
                ends.append(builder.emit_output(relax.op.nn.relu(y)))
        builder.emit_func_output(ends[-1])
    mod = lowered(builder.get())
    main = mod["main"]
    (whole,) = main.body.blocks
    parts = [list(whole.bindings[at : at + 2]) for at in (0, 2, 4)]
    body = relax.SeqExpr(list(map(relax.DataflowBlock, parts)), main.body.body)
    apart = mod.clone()
    apart["main"] = relax.Function(main.params, body, main.ret_ty, attrs=main.attrs)
    assert len(apart["main"].body.blocks) == 3
    grouped = transform.LayerGroup(CHIP)(apart)
    values = [b.value for block in grouped["main"].body.blocks for b in block.bindings]
    assert len(values) == 3
    assert all("_group_" in str(value.args[0].name_hint) for value in values)
    args = arrays(mod)
    check_same(run(grouped, args), run(mod, args))


def test_calls_of_other_things_are_left_and_stay_in_their_place():
    def body(emit, x, w):
        y = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, w, padding=(1, 1)))))
        z = emit(relax.call_dps_packed("test.layer_group.twice", (y,), y.ty))
        return emit(relax.op.add(emit(relax.op.nn.relu(z)), y))

    @tvm.register_global_func("test.layer_group.twice", override=True)
    def twice(source, result):
        tvm.runtime.tensor(source.numpy() * 2).copyto(result)

    mod = module([(1, 4, 9, 6), (4, 4, 3, 3)], body)
    report = layer_groups(mod, TINY, fuse=False)
    assert "test.layer_group.twice" not in {o for g in report.groups for o in g.operators}
    assert any("not a call of a kernel" in left.reason for left in report.left)
    grouped = build(mod, f"{TINY}-llvm", fuse=False, layer_group=True)
    args = arrays(mod)
    check_same(call(grouped, args), run(mod, args))


def test_a_target_without_pipes_is_told_what_is_assumed(caplog):
    mod = lowered(chain(), fuse=True)
    described = with_machine(TINY, MACHINES["sophgo/cv181x"])
    for target, warned in ((TINY, True), ("sophgo/cv181x", False), (described, False)):
        caplog.clear()
        layer_group._warn_of_estimate.cache_clear()  # It says so once in a process.
        transform.LayerGroup(target)(mod)
        lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert len(lines) == warned
        for line in lines:
            assert "GDMA: 64 bytes a cycle, TIU: 1024 multiply-adds a cycle" in line


def test_columns_may_reach_layers_in_parts_that_rows_do_not():
    """The last layer has few channels, and one row of two layers is too wide."""

    def body(emit, image):
        for before, after in ((3, 32), (32, 32), (32, 3)):
            weight = relax.const(np.zeros((after, before, 3, 3), "float32"))
            image = emit(relax.op.nn.relu(relax.op.nn.conv2d(image, weight, padding=1)))
        return image

    report = layer_groups(module([(1, 3, 16, 1920)], body), CHIP)
    assert [group.w_slices > 1 for group in report.groups] == [True]
    assert not report.left
    assert report.moved_after < report.moved_before / 10


def test_wrong_options_of_the_pipeline():
    with pytest.raises(ValueError, match="no option 'slices'"):
        relax_pipeline(CHIP, layer_group={"slices": 3})
    with pytest.raises(ValueError, match="layer_group must be"):
        relax_pipeline(CHIP, layer_group="yes")


def test_no_target_and_a_memory_without_lanes():
    mod = lowered(chain())
    with pytest.raises(ValueError, match="there is no target"):
        transform.LayerGroup()(mod)
    with Target(TINY):
        assert transform.LayerGroup()(mod) is not mod
    feature = {"kind": "llvm", "feature.memory": {"local.LMEM": {"capacity": 4096}}}
    with pytest.raises(ValueError, match=r"local\.LMEM.*lanes"):
        transform.LayerGroup(feature)
