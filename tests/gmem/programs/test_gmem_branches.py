# SPDX-License-Identifier: Apache-2.0
"""`GMEMAllocate` where a Relax function branches: each path is counted, and each computes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from relax_programs import parse
from relax_replay import Replay
from relax_runs import assert_same, build, lower, planned, run
from small_modules import RESHAPES, module, read, read_body

from passes.planning import planner_names, solve
from passes.relax.tensors import AllocatedTensor, live_ranges
from tvm_ext.transform import GMEMAllocate


@pytest.mark.parametrize("planner", list(planner_names()))
def test_reshapes_in_both_branches_run(planner: str):
    """apache/tvm 20191: under the stock plan this reads a storage that the path has not made."""
    lowered = lower(parse(RESHAPES))
    ours = planned(lowered, GMEMAllocate(planner))
    first, *rest = ours["main"].body.blocks[0].bindings
    assert "R.memory.alloc_storage" in str(first.value)
    assert str(ours["main"]).count("R.memory.alloc_storage") == 1
    assert rest
    vm = build(lowered, GMEMAllocate(planner))
    x = np.random.default_rng(0).standard_normal((4, 8), dtype="float32")
    for taken in (True, False, True):
        (out,) = run(vm, "main", [x, np.array(taken)])
        np.testing.assert_array_equal(out, x)


BRANCHES = """
a = R.nn.relu(x)
if c:
    b = R.concat((a, a), axis=0)
    d = R.concat((b, b), axis=0)
    r = R.sum(d)
else:
    e = R.negative(x)
    f = R.concat((e, e), axis=0)
    r = R.sum(f)
g = R.add(x, r)
h = R.sum(g)
return h
"""


def test_each_path_is_counted_once():
    params = 'x: R.Tensor((64,), "float32"), c: R.Tensor((), "bool")'
    found = read(module(BRANCHES, params))
    # For true: b and d, 512 + 1024 bytes. For false: e and f, 256 + 512, and `a` is dead.
    assert found.plan.peak == 512 + 1024
    ours = planned(module(BRANCHES, params), GMEMAllocate("best"))
    for taken in (True, False):
        assert Replay(ours, "main", lambda taken=taken: taken)().touches


EITHER = {
    "tensors from before": """
a = R.nn.relu(x)
b = R.negative(x)
if c:
    r = a
else:
    r = b
return R.add(R.add(R.exp(a), b), r)
""",
    "tensors of two branches": """
if c:
    p = R.exp(x)
else:
    p = x
if k:
    r = p
else:
    r = R.negative(x)
return R.add(R.exp(p), r)
""",
}


@pytest.mark.parametrize("name", EITHER)
def test_a_value_is_either_of_two_tensors_that_are_there_together(name: str):
    params = 'x: R.Tensor((64,), "float32"), c: R.Tensor((), "bool"), k: R.Tensor((), "bool")'
    lowered = module(EITHER[name], params)
    x = np.random.default_rng(0).standard_normal(64, dtype="float32")
    ways = product((True, False), repeat=2)
    assert_same(lowered, GMEMAllocate(), *([x, *map(np.array, way)] for way in ways))


def test_a_value_that_one_branch_needs_does_not_live_in_the_other():
    found = read_body(
        """
a = R.nn.relu(x)
if c:
    b = R.negative(x)
    r = R.sum(b)
else:
    r = R.sum(a)
s = R.add(r, r)
return s
""",
        'x: R.Tensor((64,), "float32"), c: R.Tensor((), "bool")',
    )
    by_name = {buffer.name: buffer for buffer in found.memory.main.problem.buffers}
    assert len(by_name["alloc"].live) == 2
    assert solve(found.problem).peak < 2 * 256, "a and b share"


@pytest.mark.parametrize(
    ("touches", "live"),
    [
        ((2, 6), [(2, 7)]),
        ((2, 11), [(2, 5), (9, 12)]),
        ((6, 20), [(6, 9), (14, 21)]),
        ((6, 11), [(6, 7), (11, 12)]),
        ((2, 6, 11), [(2, 7), (9, 12)]),
        ((2, 20), [(2, 21)]),
        ((16, 20), [(16, 21)]),
    ],
)
def test_a_tensor_lives_on_the_way_from_one_touch_to_another(
    touches: tuple[int, ...], live: list[tuple[int, int]]
):
    tensor = AllocatedTensor("t", None, (), 0, touched_at=list(touches))
    assert live_ranges(tensor, {4: ((5, 9), (9, 14))}) == tuple(live)


def test_a_condition_lives_until_it_is_read():
    found = read_body("""
s = R.sum(x)
q = R.greater(s, R.const(0, "float32"))
a = R.nn.relu(x)
b = R.sum(a)
if q:
    r = R.add(b, b)
else:
    r = R.negative(b)
t = R.add(r, r)
return t
""")
    condition = found.memory.main.problem.buffers[1]
    assert condition.size == 1
    written, branch = (found.memory.bindings.index(name) for name in ("q", "r"))
    assert condition.live == ((written - 1, branch + 1),)
