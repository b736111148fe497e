# SPDX-License-Identifier: Apache-2.0
"""What crosses the boundary of a group is what it was: tuples, other names, casts, views."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from boundary_cases import (
    CASES,
    FLOATS,
    LINES,
    OP,
    SHAPE,
    X,
    doubled,
    function_of,
    item,
    kernel_of_two_stores,
    no_elements,
    taken_out_behind,
    taken_out_here_and_behind,
    with_groups,
)
from llvm_level import at_level
from operator_modules import arrays, flat, kernels, run
from tvm import relax

KEPT = ("R.match_cast", "test.boundaries.twice")
ALONE = (taken_out_behind, taken_out_here_and_behind, no_elements)


@pytest.fixture(scope="module")
def built():
    """All cases in one module: grouped, built with groups, and built without."""
    b = relax.BlockBuilder()
    for case in CASES:
        function_of(b, case, case.__name__)
    mod, grouped = with_groups(b)
    machines = [
        relax.VirtualMachine(tvm.compile(m, target=at_level("llvm")), tvm.cpu())
        for m in (grouped, mod)
    ]
    return mod, grouped, machines


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_results_are_those_without_groups(case, built):
    before, mod, machines = built
    text, written = (one[case.__name__].script() for one in (mod, before))
    assert (case not in ALONE) == ("_group" in text)
    # Another name for what is inside of a group keeps none of its layers.
    assert not case.__name__.startswith("other_names") or text.count("R.call_tir") == 1
    # What nothing uses is there for what it does.
    assert [text.count(x) for x in KEPT] == [written.count(x) for x in KEPT]
    ours, theirs = (flat(machine[case.__name__](tvm.runtime.tensor(X))) for machine in machines)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_fields_of_a_parameter_are_loaded():
    def case(b, p):
        within = item(b, p, 1)
        sums = b.emit(OP.add(OP.negative(item(b, p, 0)), item(b, within, 0)))
        return OP.multiply(sums, item(b, within, 1))

    nested = relax.TupleType([FLOATS, relax.TupleType([FLOATS, FLOATS])])
    mod, grouped = with_groups(function_of(relax.BlockBuilder(), case, ty=nested))
    assert not set(kernels(mod)) & set(kernels(grouped)), "all layers are in groups"
    x = tvm.runtime.tensor(X)
    vm = relax.VirtualMachine(tvm.compile(grouped, target=at_level("llvm")), tvm.cpu())
    np.testing.assert_array_equal(flat(vm["main"]((x, (x, x))))[0], X * 0)


@pytest.mark.parametrize("read", ["elem_offset=begin, offset_factor=1", "elem_offset=192"])
def test_a_view_is_read_where_it_begins(read):
    def case(b, x):
        view = b.emit(OP.memory.view(x, SHAPE, "float32", 768))
        return OP.negative(doubled(b, view, read))

    both = relax.TensorType((2, *SHAPE[1:]), "float32")
    mod, grouped = with_groups(function_of(relax.BlockBuilder(), case, ty=both))
    assert any("group" in kernel for kernel in kernels(grouped))
    x = [np.concatenate([X, X + 1])]
    np.testing.assert_array_equal(run(grouped, x)[0], run(mod, x)[0])


def test_a_call_stays_for_the_result_that_is_in_no_group():
    def case(b, x):
        two = kernel_of_two_stores(b, "apo", "p[v, w] = o[v, w] * T.float32(2)")
        both = b.emit(relax.call_tir(two, [x], [LINES, LINES]))
        return OP.add(OP.negative(item(b, both, 0)), item(b, both, 1))

    mod, grouped = with_groups(function_of(relax.BlockBuilder(), case, ty=LINES))
    assert any("group" in name for name in kernels(grouped))
    (x,) = arrays(mod)
    np.testing.assert_array_equal(run(grouped, [x])[0], (x + 1) - (x + 1) * 2)
