# SPDX-License-Identifier: Apache-2.0
"""The corpus under plans: right, never larger than what whole allocations share, and run."""

from collections.abc import Callable, Iterator

import pytest
import tvm
import tvm_ffi
from address_runs import (
    assert_same_results,
    calls_extern_code,
    identity,
    memory_after,
    num_arenas,
)
from corpus import Entry
from tvm import tirx

from passes.addresses.transform import PlanAddresses, plan_addresses
from passes.driver import AddressPlan
from passes.planning import lower_bound, planner_names, verify
from passes.prim_func.problems import ProblemOptions
from passes.storage_rewrite.transform import plan_storage

PLANNERS = list(planner_names())

SCOPES = ("local.UB", "global", "shared.UB", "local.L1", "global.workspace")

RUN = (
    "aliases",
    "attention",
    "branches",
    "butterfly",
    "chain_cached",
    "chain_mixed_types",
    "chain_vectorized",
    "dense_bfloat16",
    "densely_connected",
    "loops",
    "matmul_cached",
    "partial_reduction",
    "pool_gradient",
    "separable",
    "softmax_variants",
    "software_pipeline",
    "sort",
)
"""Workloads of which the first function with an arena runs by default."""

CANNOT_RUN = {
    "activation[llvm,gelu_float16]": "the intrinsic erf has no float16 form",
    "fixed_point[llvm,scalar]": "it shifts by more bits than there are, for random numbers",
    "opaque_calls[llvm,packed]": "it calls a function that is not there",
    "conv2d_winograd[llvm,nchw_14x14x32_float16]": "it reads beyond the end of an allocation",
    "conv2d_winograd[llvm,nchw_14x14x64_float32]": "it reads beyond the end of an allocation",
    "sampling[llvm,roi_align]": "its inputs say where to read, and random ones say: outside",
    "sampling[llvm,roi_pool]": "its inputs say where to read, and random ones say: outside",
}


STOCK_IS_WRONG = {
    "aliases[llvm,view]": "it puts a transposed copy in place, because it is read by another name",
}
"""Where StorageRewrite takes less memory than there can be."""


def function(entry: Entry) -> tirx.PrimFunc:
    (func,) = entry.mod.functions.values()
    return func


def with_scopes(mod: tvm.IRModule) -> tvm.IRModule:
    """Spread the allocations of a function over several scopes; one with views stays."""
    ((var, func),) = mod.functions.items()
    allocs, views = [], []
    tvm_ffi.structural_walk(
        func, [(tirx.AllocBuffer, allocs.append), (tirx.DeclBuffer, views.append)]
    )
    if any(view.buffer.ty.storage_scope not in ("", "global") for view in views):
        return mod
    keys = {alloc.buffer.__chandle__() for alloc in allocs}
    if any(_source(view) in keys for view in views):
        return mod
    moved = {
        alloc.buffer.__chandle__(): tirx.decl_buffer(
            alloc.buffer.ty.shape,
            str(alloc.buffer.ty.dtype.dtype),
            alloc.buffer.name,
            scope=SCOPES[at % len(SCOPES)],
            layout=None,
        )
        for at, alloc in enumerate(allocs)
    }

    def replace(op: tirx.Var, mutator: object) -> object:
        new = moved.get(op.__chandle__())
        return mutator.default_mutate(op) if new is None else new

    body = tvm_ffi.structural_mutate(func.body, (tirx.Var, replace))
    return tvm.IRModule({var: func.with_body(body)})


def _source(view: tirx.DeclBuffer) -> int:
    data = view.data
    return (data if isinstance(data, tirx.Var) else data.args[0]).__chandle__()


def plans(entry: Entry, planner: str, **options) -> AddressPlan:
    return plan_addresses(function(entry), planner, ProblemOptions(**options))


@pytest.mark.parametrize("planner", PLANNERS)
def test_every_planner_is_right_on_a_sample(corpus: list[Entry], planner: str):
    num_problems = 0
    for entry in corpus[::15]:
        for addressed in (True, False):
            for scope in plans(entry, planner, addressed=addressed).scopes:
                assert verify(scope.problem, scope.plan) == ()
                num_problems += 1
    assert num_problems > 20


@pytest.mark.parametrize("form", ["address", "arena"])
def test_both_forms_are_well_formed_for_half_of_the_corpus_each(corpus: list[Entry], form: str):
    write = PlanAddresses("first_fit", form)
    for entry in corpus[form == "arena" :: 2]:
        if form == "arena" and entry.target in ("vulkan", "webgpu"):
            continue
        # Launches name thread variables without defining them.
        if tirx.analysis.verify_well_formed(entry.mod, assert_mode=False):
            assert tirx.analysis.verify_well_formed(write(entry.mod)), entry.name


def shared_bytes(entry: Entry, plan: AddressPlan) -> int:
    """Return what the mirrored StorageRewrite takes for the allocations that a plan places."""
    access = plan.found.access
    placed = {a.index: s for s in plan.scopes for a in s.attached.allocations.values()}
    total = 0
    for piece in plan_storage(access).entries:
        if any(index in placed for index in piece.allocs):
            alignment = placed[piece.allocs[0]].problem.memory.alignment
            size = -(-piece.const_nbits // 8)
            total += -(-size // alignment) * alignment
    return total


def test_never_more_than_sharing_whole_allocations_and_nearly_always_the_least(
    corpus: list[Entry],
):
    num_problems = at_bound = 0
    for entry in corpus[::2]:
        # Of what threads share, TVM's barriers see an arena and not an address.
        plan = plans(entry, "best", addressed=entry.target == "llvm")
        peaks = sum(scope.plan.peak - scope.base for scope in plan.scopes)
        is_smaller = shared_bytes(entry, plan) < peaks
        assert is_smaller == (entry.name in STOCK_IS_WRONG), entry.name
        num_problems += len(plan.scopes)
        at_bound += sum(s.plan.peak == lower_bound(s.problem) for s in plan.scopes)
    assert at_bound >= 0.95 * num_problems > 0


@pytest.mark.parametrize("name", STOCK_IS_WRONG)
def test_what_the_stock_pass_gets_wrong_is_right_here(corpus: list[Entry], name: str):
    (entry,) = (entry for entry in corpus if entry.name == name)
    expected = memory_after(entry.mod, identity())
    assert memory_after(entry.mod, tirx.transform.StorageRewrite()) != expected
    assert_same_results(entry.mod)


def runnable(corpus: list[Entry]) -> Iterator[Entry]:
    arena = PlanAddresses("first_fit", "arena")
    return (
        entry
        for entry in corpus
        if entry.target == "llvm"
        and entry.name not in CANNOT_RUN
        and not calls_extern_code(entry.mod)
        and num_arenas(arena(entry.mod))
    )


@pytest.mark.parametrize("at", range(len(RUN)), ids=RUN)
def test_a_sample_computes_the_same(corpus: list[Entry], at: int):
    """Every second function with its allocations in several scopes, the others as they are."""
    entries = [entry for entry in corpus if entry.name.startswith(f"{RUN[at]}[")]
    mod = next(runnable(entries)).mod
    assert_same_results(with_scopes(mod) if at % 2 else mod)


@pytest.mark.slow
@pytest.mark.parametrize("planner", ["best", "storage_rewrite", "skyline"])
@pytest.mark.parametrize("change", [lambda mod: mod, with_scopes], ids=["as it is", "scopes"])
def test_the_corpus_computes_the_same(
    corpus: list[Entry], planner: str, change: Callable[[tvm.IRModule], tvm.IRModule]
):
    wrong = []
    for entry in runnable(corpus):
        try:
            assert_same_results(change(entry.mod), planner=planner)
        except AssertionError:
            wrong.append(entry.name)
    assert wrong == []
