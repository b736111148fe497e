# SPDX-License-Identifier: Apache-2.0
"""Groupings in files: what is saved is planned again, and a person may change it."""

from __future__ import annotations

import json

import pytest
from fixed_groups import block_of
from operator_modules import arrays, call, check_same, module, run
from test_group_kernels import NETWORKS, chain
from test_layer_group_pass import TINY, build
from tvm import relax

from tvm_ext import transform
from tvm_ext.relax_passes import relax_pipeline
from tvm_ext.report.readers.groups import layer_groups
from tvm_ext.report.readers.groups import lowered as as_kernels

OP = relax.op


def save(report, path, change=lambda _groups: None):
    """Write what a report saves, changed by a function of the groups of its one block."""
    data = json.loads(report.saved)
    change(data["blocks"][0]["groups"])
    path.write_text(json.dumps(data))
    return path


def facts(report):
    return [
        (one.layers, str(one.planned.cut), one.cycles, one.moved, one.planned.plan.offsets)
        for one in report.groups
    ]


@pytest.mark.parametrize("name", ["residual", "transformer", "skip over a scale"])
def test_what_is_saved_is_planned_again(name, tmp_path):
    mod, target = NETWORKS[name](), f"{TINY}-llvm"
    report = layer_groups(mod, target)
    assert report.groups
    path = save(report, tmp_path / "plan.json")
    again = layer_groups(mod, target, plan=path)
    assert facts(again) == facts(report)
    assert again.makespan_after == report.makespan_after
    assert again.moved_after == report.moved_after
    assert again.saved == report.saved
    assert [one.layer for one in again.left] == [one.layer for one in report.left]


def test_layers_run_in_the_order_of_their_group(tmp_path):
    """Another order than the module's costs other cycles: weights come beside other layers."""

    def body(emit, x, w, gate, v):
        y = emit(OP.nn.relu(emit(OP.add(emit(OP.matmul(x, w)), emit(OP.negative(x))))))
        return emit(OP.multiply(y, emit(OP.matmul(emit(OP.matmul(x, gate)), v))))

    mod, target = module([(1, 6, 8), (8, 8), (8, 12), (12, 8)], body), f"{TINY}-llvm"
    whole = {"layers": [x.name for x in block_of(as_kernels(mod, fuse=False)).network.layers]}
    first, second = (
        [x for x in whole["layers"] if x.startswith(names)]
        for names in (("matmul1:", "matmul2:"), ("matmul:", "tir_neg", "add", "relu", "mul"))
    )
    path, found = tmp_path / "plan.json", []
    for layers in (whole["layers"], [*first, *second], [*second[::-1], *first]):
        block = {"function": "main", "block": 0, "groups": [{"layers": layers}]}
        path.write_text(json.dumps({"blocks": [block]}))
        found.append(layer_groups(mod, target, plan=path, fuse=False).groups[0].layers)
    assert [*map(list, found)] == [whole["layers"], [*first, *second], whole["layers"]]
    block["groups"] = [{"layers": [*first, *second]}]
    path.write_text(json.dumps({"blocks": [block]}))
    grouped = transform.LayerGroup(target, plan=path)(as_kernels(mod, fuse=False))
    args = arrays(mod)
    check_same(run(grouped, args), run(mod, args))


def test_a_cut_that_the_search_does_not_find_is_taken_priced_and_gives_the_same(tmp_path):
    mod, target = chain(batch=2, height=24), f"{TINY}-llvm"
    report = layer_groups(mod, target)

    def changed(groups):
        # Ever more slices are tried in steps of a half: five or seven of the rows never are.
        groups[0]["slices"] = {"n": 2, "h": 7}
        groups[0]["halo"] = "keep"

    path = save(report, tmp_path / "plan.json", changed)
    again = layer_groups(mod, target, plan=str(path))
    cut = again.groups[0].planned.cut
    assert (cut.counts["n"], cut.counts["h"], cut.keep_rows) == (2, 7, True)
    assert str(cut) not in {str(one.planned.cut) for one in report.groups}
    assert again.makespan_after != report.makespan_after
    vm, args = build(mod, target, layer_group={"plan": path}), arrays(mod)
    check_same(call(vm, args), run(mod, args))


def test_one_core_shares_nothing_whatever_the_file_says(tmp_path):
    mod, target = chain(batch=2, height=24), f"{TINY}-llvm"
    path = save(
        layer_groups(mod, target),
        tmp_path / "plan.json",
        lambda groups: groups[0].update(share="channels"),
    )
    vm, args = build(mod, target, layer_group={"plan": path}), arrays(mod)
    check_same(call(vm, args), run(mod, args))


def test_groups_are_in_any_order_that_the_layers_can_run_in(tmp_path):
    """Of two branches, the layers of each become a group, though they are written in turns."""

    def body(emit, x, w, v):
        a, b = x, x
        for _ in range(2):
            a = emit(OP.nn.relu(emit(OP.nn.conv2d(a, w, padding=(1, 1)))))
            b = emit(OP.nn.relu(emit(OP.nn.conv2d(b, v, padding=(1, 1)))))
        return emit(OP.add(a, b))

    mod = module([(1, 8, 12, 12), (8, 8, 3, 3), (8, 8, 3, 3)], body)
    target = f"{TINY}-llvm"
    names = [layer.name for layer in block_of(as_kernels(mod, fuse=False)).network.layers]
    left, right = ([n for at, n in enumerate(names[:8]) if at // 2 % 2 == k] for k in (0, 1))
    groups = [{"layers": one, "slices": {"h": 4}, "halo": "keep"} for one in (right, left)]
    block = {"function": "main", "block": 0, "groups": groups}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"blocks": [block]}))
    again = layer_groups(mod, target, plan=path, fuse=False)
    assert sorted(map(sorted, (one.layers for one in again.groups))) == sorted(
        map(sorted, (left, right))
    )
    grouped = transform.LayerGroup(target, plan=path)(as_kernels(mod, fuse=False))
    args = arrays(mod)
    check_same(run(grouped, args), run(mod, args))


def test_a_block_that_the_file_does_not_name_is_searched(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{"blocks": []}')
    mod, target = chain(), f"{TINY}-llvm"
    assert facts(layer_groups(mod, target, plan=path)) == facts(layer_groups(mod, target))


GROUP = {"layers": ["no_such:layer"]}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"the plan '.*' cannot be read: .*No such file"),
        ("{", "cannot be read: Expecting"),
        ("[]", r"\[\] should be of type dict"),
        ("{}", "'blocks' is missing"),
        ('{"blocks": [], "more": 1}', "'more' is not known; there may be 'blocks'"),
        ('{"blocks": [{"function": "main", "groups": []}]}', "block 0: 'block' is missing"),
        ({"layers": []}, 'group 0: "layers" must be names'),
        ({**GROUP, "slices": {"x": 2}}, "'x' is not known; there may be 'n', 'd', 'w', 'h'"),
        ({**GROUP, "slices": {"h": 0}}, "'h' must be a whole number from 1 up, got 0"),
        ({**GROUP, "part_bytes": "1"}, "'part_bytes' must be a whole number from 0 up, got '1'"),
        ({**GROUP, "halo": "drop"}, "'halo' must be one of"),
        ({**GROUP, "share": []}, "'share' must be one of"),
        ({**GROUP, "slices": {"h": 3}, "cores": 2}, "cores cannot have equally many slices"),
        (GROUP, "'main' has no layer 'no_such:layer'"),
    ],
)
def test_a_file_that_cannot_be_is_refused(text, said, tmp_path):
    path = tmp_path / "plan.json"
    if isinstance(text, dict):
        block = {"function": "main", "block": 0, "groups": [text]}
        text = json.dumps({"blocks": [block]})
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=said):
        layer_groups(chain(), f"{TINY}-llvm", plan=path)


def test_a_pipeline_reads_its_plan_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"LayerGroup: the plan .* cannot be read"):
        relax_pipeline(f"{TINY}-llvm", layer_group={"plan": tmp_path / "none.json"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda groups: groups.append(groups[0]), "group 1: layer '.*' is in group 0, too"),
        (lambda groups: groups[0].update(slices={"h": 1000}), "slices along 'h' at most, not 1000"),
        (lambda groups: groups[0].update(cores=2, slices={"h": 2}), "the chip has 1 cores, not 2"),
        (lambda groups: groups[0].update(slices={}, part_bytes=0), "bytes a lane of local.LMEM"),
        (lambda groups: groups[0]["layers"].pop(1), "a path between its layers leaves it"),
    ],
)
def test_a_group_that_cannot_be_is_refused(change, said, tmp_path):
    mod, target = chain(height=24), f"{TINY}-llvm"
    report = layer_groups(mod, target)
    assert len(report.groups[0].layers) > 2

    def changed(groups):
        del groups[1:]
        change(groups)

    path = save(report, tmp_path / "plan.json", changed)
    with pytest.raises(ValueError, match=said):
        layer_groups(mod, target, plan=path)


def test_a_function_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{"blocks": [{"function": "other", "block": 3, "groups": []}]}')
    with pytest.raises(ValueError, match="there is no block 3 of calls in a function 'other'"):
        layer_groups(chain(), f"{TINY}-llvm", plan=path)
