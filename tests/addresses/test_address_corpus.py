# SPDX-License-Identifier: Apache-2.0
"""The corpus under plans: right, never larger than what whole allocations share, and run."""

from collections.abc import Callable, Iterator
from functools import partial

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

from passes.addresses.transform import PlanAddresses
from passes.driver import place_function
from passes.planning import planner_names, solve, verify
from passes.prim_func.problems import ProblemOptions, find_problems

PLANNERS = list(planner_names())

SCOPES = ("local.UB", "global", "shared.UB", "local.L1", "global.workspace")

RUN = (
    "branches",
    "chain_mixed_types",
    "chain_vectorized",
    "loops",
    "softmax_variants",
    "software_pipeline",
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


@pytest.mark.parametrize("addressed", [True, False])
def test_every_planner_is_right_on_a_sample(corpus: list[Entry], addressed: bool):
    num_problems = 0
    for entry in corpus[addressed::20]:
        found = find_problems(function(entry), ProblemOptions(addressed=addressed))
        for planner in PLANNERS:
            for scope in place_function(found, partial(solve, planner=planner)).scopes:
                assert verify(scope.problem, scope.plan) == ()
                num_problems += 1
    assert num_problems > len(PLANNERS)


@pytest.mark.parametrize(
    "step", [4, pytest.param(2, marks=pytest.mark.slow)], ids=["sample", "half"]
)
@pytest.mark.parametrize("form", ["address", "arena"])
def test_both_forms_are_well_formed(corpus: list[Entry], form: str, step: int):
    write = PlanAddresses("first_fit", form)
    for entry in corpus[form == "arena" :: step]:
        if form == "arena" and entry.target in ("vulkan", "webgpu"):
            continue
        # Launches name thread variables without defining them.
        if tirx.analysis.verify_well_formed(entry.mod, assert_mode=False):
            assert tirx.analysis.verify_well_formed(write(entry.mod)), entry.name


@pytest.mark.parametrize("name", ["aliases[llvm,view]"])
def test_what_the_stock_pass_gets_wrong_is_right_here(corpus: list[Entry], name: str):
    """The stock pass puts a transposed copy in place, because it is read by another name."""
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
