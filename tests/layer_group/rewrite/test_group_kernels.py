# SPDX-License-Identifier: Apache-2.0
"""Groups as kernels: whatever the cut, the numbers are those of the layers one by one."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import tvm
from fixed_groups import LANES, allocations, everything, grouped
from operator_modules import arrays, check_same, kernels, lowered, module, run
from tvm import relax

from passes.ir.structural import structural_mutate
from passes.layer_group.analysis.kernel_calls import read_results
from passes.layer_group.analysis.read_kernel import read_kernel
from passes.layer_group.planning.cut import Cut
from passes.layer_group.rewrite.slice_values import piecewise


def chain(batch=1, height=29):
    """Convolution, ReLU, pooling, convolution: two halos and a stride, at an odd height."""

    def body(emit, x, w, v):
        y = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, w, padding=(1, 1)))))
        y = emit(relax.op.nn.max_pool2d(y, (3, 3), (2, 2), (1, 1)))
        return emit(relax.op.nn.conv2d(y, v, padding=(1, 1)))

    return module([(batch, 4, height, 9), (8, 4, 3, 3), (8, 8, 3, 3)], body)


def residual():
    """Two readers of one tensor that need different rows of it, and a result in the middle."""

    def body(emit, x, w, v):
        first = emit(relax.op.nn.conv2d(x, w, padding=(1, 1)))
        deep = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(first, v, padding=(2, 2)))))
        inner = emit(relax.op.strided_slice(deep, [2, 3], [1, 1], [24, 10], [1, 1]))
        return [emit(relax.op.add(first, inner)), deep]

    return module([(2, 4, 23, 9), (8, 4, 3, 3), (8, 8, 3, 3)], body)


def inception():
    """Branches of different windows over one input, joined along the channels."""

    def body(emit, x, w, v):
        narrow = emit(relax.op.nn.conv2d(x, w))
        wide = emit(relax.op.nn.conv2d(x, v, padding=(2, 2)))
        pooled = emit(relax.op.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1)))
        return emit(relax.op.concat([narrow, wide, pooled], axis=1))

    return module([(1, 6, 17, 8), (4, 6, 1, 1), (5, 6, 5, 5)], body)


def skip_over_a_scale():
    """Down, up by a transposed convolution and by resizing, and a skip: a small U-Net."""

    def body(emit, x, w, v, u):
        kept = emit(relax.op.nn.relu(emit(relax.op.nn.conv2d(x, w, padding=(1, 1)))))
        low = emit(relax.op.nn.max_pool2d(kept, (2, 2), (2, 2)))
        up = emit(relax.op.nn.conv2d_transpose(low, v, strides=(2, 2)))
        large = emit(relax.op.image.resize2d(low, (22, 10), layout="NCHW", method="linear"))
        joined = emit(relax.op.concat([kept, up, large], axis=1))
        return emit(relax.op.nn.conv2d(joined, u, padding=(1, 1)))

    shapes = [(1, 3, 22, 10), (4, 3, 3, 3), (4, 4, 2, 2), (4, 12, 3, 3)]
    return module(shapes, body)


def transformer():
    """Rows of a sequence: matrix products, softmax, layer norm, GELU and residuals."""

    def body(emit, x, w, k, v, g, b):
        scores = emit(relax.op.nn.softmax(emit(relax.op.matmul(emit(relax.op.matmul(x, w)), k))))
        y = emit(relax.op.add(x, emit(relax.op.matmul(scores, v))))
        y = emit(relax.op.nn.layer_norm(y, g, b, axes=[-1]))
        return emit(relax.op.add(y, emit(relax.op.nn.gelu(y))))

    return module([(2, 19, 16), (16, 12), (12, 21), (21, 16), (16,), (16,)], body)


def depthwise():
    """An inverted residual with a dilated depthwise convolution, at a batch of 3."""

    def body(emit, x, w, d, p):
        y = emit(relax.op.clip(emit(relax.op.nn.conv2d(x, w)), 0, 6))
        y = emit(relax.op.nn.conv2d(y, d, padding=(2, 2), dilation=(2, 2), groups=12))
        return emit(relax.op.add(x, emit(relax.op.nn.conv2d(emit(relax.op.clip(y, 0, 6)), p))))

    return module([(3, 4, 15, 7), (12, 4, 1, 1), (12, 1, 3, 3), (4, 12, 1, 1)], body)


NETWORKS = {
    "chain": chain,
    "residual": residual,
    "inception": inception,
    "skip over a scale": skip_over_a_scale,
    "transformer": transformer,
    "depthwise": depthwise,
}


@cache
def chained():
    """Return the chain, lowered, its arguments, and the numbers of its layers one by one."""
    mod = lowered(chain())
    args = arrays(mod)
    return mod, args, run(mod, args)[0]


def largest_batch(mod):
    return int(mod["main"].params[0].ty.shape.values[0])


def check_cut(mod, cut):
    args = arrays(mod)
    found = grouped(mod, {everything(mod): cut})
    assert found is not None
    check_same(run(found[0], args), run(mod, args))


@pytest.mark.parametrize(
    ("name", "keep"), [("residual", True), ("skip over a scale", True), ("transformer", False)]
)
def test_all_layers_as_one_group(name, keep):
    mod = lowered(NETWORKS[name](), fuse=keep)
    check_cut(mod, Cut(n=largest_batch(mod), h=4, keep_rows=keep))


@pytest.mark.slow
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_all_layers_as_one_group_in_many_cuts(name, fuse, keep):
    mod = lowered(NETWORKS[name](), fuse=fuse)
    for h in (1, 2, 3, 7, 10):
        for n in {1, largest_batch(mod)}:
            check_cut(mod, Cut(n=n, h=h, keep_rows=keep))


def test_both_forms_give_the_same_and_addresses_are_in_a_lane():
    mod = lowered(chain(batch=2))
    args = arrays(mod)
    results = []
    for form in ("arena", "address"):
        found = grouped(mod, {everything(mod): Cut(n=2, h=5, keep_rows=True)}, form=form)
        assert found is not None
        new, (planned,) = found
        results.append(run(new, args))
        buffers = allocations(new["group_0"])
        if form == "arena":
            (arena,) = buffers
            assert int(arena.ty.shape[0]) == planned.plan.peak * LANES
            continue
        places = {str(b.name): int(b.ty.allocated_addr[0]) for b in buffers}
        offsets = planned.plan.offsets
        assert places == {name: offsets[name][0] for name in planned.group.names}
    check_same(*results)


def test_overlapping_buffers_give_wrong_numbers_in_the_arena():
    # The arena is what makes these tests see a bad plan.
    from dataclasses import replace

    import fixed_groups

    mod, args, expected = chained()
    original = fixed_groups.plan_group

    def overlapping(*given):
        plan = original(*given)
        offsets = dict.fromkeys(plan.plan.offsets, (0,))
        return replace(plan, plan=replace(plan.plan, offsets=offsets))

    fixed_groups.plan_group = overlapping
    fixed_groups.check, checked = (lambda *_: None), fixed_groups.check
    try:
        new, _ = grouped(mod, {everything(mod): Cut(h=3)})
    finally:
        fixed_groups.plan_group, fixed_groups.check = original, checked
    assert not np.array_equal(run(new, args)[0], expected)


def test_two_groups_and_a_layer_between():
    mod = lowered(chain(batch=2))
    args = arrays(mod)
    found = grouped(mod, {(0, 1): Cut(h=4), (3,): Cut(n=2, h=3)})
    assert found is not None
    new, _ = found
    check_same(run(new, args), run(mod, args))
    names = {str(v.name_hint) for v in new.get_global_vars()}
    assert not {"conv2d", "relu", "conv2d1"} & names
    assert {"main", "group_0", "max_pool2d", "group_1"} <= names
    tvm.ir.assert_structural_equal(new["max_pool2d"], mod["max_pool2d"])


def test_what_has_no_batch_is_read_by_each_entry():
    def body(emit, x, y):
        return emit(relax.op.nn.relu(emit(relax.op.add(x, emit(relax.op.exp(y))))))

    mod = lowered(module([(2, 2, 6, 4), (1, 2, 6, 4)], body, inputs=2))
    check_cut(mod, Cut(n=2, h=2, keep_rows=True))


def test_working_memory_in_the_place_of_a_result_that_every_slice_makes_whole():
    def body(emit, x, w, v):
        y = emit(relax.op.nn.softmax(emit(relax.op.nn.conv2d(x, w, padding=(1, 0))), axis=3))
        return emit(relax.op.nn.conv2d(y, v, padding=(4, 0)))

    mod = lowered(module([(1, 2, 6, 4), (2, 2, 3, 1), (2, 2, 9, 1)], body))
    check_cut(mod, Cut(h=2))
    # In a slice of columns the exponentials of all of them would be working memory.
    assert grouped(mod, {everything(mod): Cut(w=2)}) is None


@pytest.mark.parametrize("count", [3, 6])
def test_rows_in_one_axis_are_kept_behind_rows_and_columns(count):
    """The last slices make none of the rows, and none of the columns that follow from the same."""

    def body(emit, x, scale, shift):
        y = emit(relax.op.nn.layer_norm(x, scale, shift, axes=[-1]))
        y = emit(relax.op.nn.relu(emit(relax.op.reshape(y, (24, 4)))))
        y = emit(relax.op.reshape(y, (1, 6, 4, 4)))
        return emit(relax.op.nn.max_pool2d(y, (5, 1), (1, 1), (2, 0), layout="NHWC"))

    mod = lowered(module([(1, 6, 4, 4), (4,), (4,)], body))
    after, (planned,) = grouped(mod, {everything(mod): Cut(h=count, keep_rows=True)})
    rows, columns = (part.spans.ranges for part in planned.slices.tensors["lv"].makes[1:3])
    assert columns[0] == (0, 4)
    assert rows[-1] == columns[-1] == (0, 0)
    check_same(run(after, arrays(mod)), run(mod, arrays(mod)))


@pytest.mark.parametrize(("rows", "into"), [(2, 7), (2, 51), (9, 23)])
def test_rows_are_there_however_a_product_is_rounded(rows, into):
    """A machine that multiplies and adds in one instruction rounds once, and others twice."""

    def body(emit, x):
        resized = relax.op.image.resize2d(
            x, (into, 1), layout="NCHW", method="nearest_neighbor", rounding_method="round"
        )
        return emit(resized)

    (kernel,) = kernels(lowered(module([(1, 1, rows, 1)], body))).values()
    reads = read_results(read_kernel(kernel))[1].reads[0][2]
    scale = np.float32(rows) / np.float32(into)
    for at, (begin, end) in enumerate(reads.spans.ranges):
        middle, half = np.float32(at + 0.5), np.float32(0.5)
        once = np.float32(float(Fraction(float(scale)) * Fraction(float(middle)) - Fraction(1, 2)))
        for row in (once, scale * middle - half):
            assert begin <= np.clip(np.rint(row), 0, rows - 1) < end


@pytest.mark.parametrize(
    "values",
    [
        [0],
        [0, 5],
        [0, 13, 26, 41],
        [0, 10, 20, 29, 38, 47],
        [0, 0, 1, 2, 3, 4, 4, 4],
        [7, 3, 9, 9, 1, 0, 0, 5],
    ],
)
def test_numbers_that_follow_slices(values):
    index = tvm.ir.Var("at", tvm.ir.PrimType("int64"))
    expr = piecewise(values, index)
    for at, value in enumerate(values):
        put = tvm.tirx.IntImm("int64", at)
        found = structural_mutate(expr, [(tvm.ir.Var, lambda _v, _m, put=put: put)])
        assert int(tvm.sym.Analyzer().simplify(found)) == value
