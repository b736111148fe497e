# SPDX-License-Identifier: Apache-2.0
"""Our passes in TVM's own pipelines for TIR."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Lock, get_ident
from types import ModuleType
from typing import Any

from tvm import s_tir, tirx
from tvm.backend.trn import transform as trn_passes

from passes.addresses import drop_for_kernels
from passes.ir import (
    IRModule,
    Pass,
    Sequential,
    make_pass,
    nodes_in,
    prim_funcs,
    storage_scope,
    target_kind,
    tir,
)
from passes.pass_errors import error_context
from passes.pass_options import check_flags
from tvm_ext import known_names, transform  # noqa: F401 - TVM knows pipelines by name then.

_TRAINIUM = "trn"  # The kind of its targets, and the name of its pipeline


def use(name: str, **options: Any) -> AbstractContextManager[None]:
    """Put a pass of ours in the place of TVM's while a block runs.

    Code inside the block calls TVM as usual: ``tvm.tirx.build``, ``tvm.compile``, or a pipeline of
    its own that asks ``tvm.tirx.transform`` for the pass. A thread finds what the block put there
    that it entered last and has not left; one that is in none, such as a worker of a pool, finds
    that of the block that any thread entered last.

    Parameters
    ----------
    name : str
        ``StorageRewrite``; or in its place ``PlanAddresses``, by default in the form ``arena``, or
        ``AscendPlanMemory``, which plans the workspace and then what is on chip. After both,
        `StorageRewrite(sound=True)` runs on what they leave alone, addresses that TVM's lowering
        allows nowhere are taken off (`DropAddresses`), and in arena form `PlanSharedMemory` plans
        what the threads of a kernel share. Or ``PlanSharedMemory`` in the place of TVM's merge of
        shared memory, with `StorageRewrite(shared_apart=True)` before it, unless in a block of
        another pass: buffers that this has merged count as one allocation.
    **options
        Those of the pass, as in `tvm_ext.transform`.

    Raises
    ------
    ValueError
        When no pass of that name has a place, or an option is wrong.

    Examples
    --------
    >>> with tvm_ext.use("StorageRewrite"):
    ...     executable = tvm.compile(mod, target="llvm")
    """
    uses: dict[str, Callable[..., AbstractContextManager[None]]] = {
        "StorageRewrite": _use_storage_rewrite,
        "PlanAddresses": _use_plan_addresses,
        "AscendPlanMemory": _use_ascend_plan_memory,
        "PlanSharedMemory": _use_plan_shared_memory,
    }
    if name not in uses:
        raise ValueError(f"use: no pass {name!r} has a place; there are: {', '.join(uses)}")
    return uses[name](**options)


def _use_storage_rewrite(**options: Any) -> AbstractContextManager[None]:
    return replaced("StorageRewrite", partial(transform.StorageRewrite, **options), for_all=True)


def _use_plan_addresses(
    planner: str = "best", form: transform.Form = "arena", **options: Any
) -> AbstractContextManager[None]:
    return _planned(lambda: transform.PlanAddresses(planner, form, **options), form, for_all=True)


def _use_ascend_plan_memory(
    form: transform.Form = "arena", **options: Any
) -> AbstractContextManager[None]:
    return _planned(partial(_ascend_plan_memory, form, **options), form, for_all=True)


def _ascend_plan_memory(form: transform.Form, **options: Any) -> Pass:
    workspace = transform.AscendPlanMemory("global-work-space-plan", form=form, **options)
    return Sequential([workspace, transform.AscendPlanMemory(form=form, **options)])


def _use_plan_shared_memory(planner: str = "best", **options: Any) -> AbstractContextManager[None]:
    return _shared_memory(partial(transform.PlanSharedMemory, planner, **options), for_all=True)


@contextmanager
def _shared_memory(
    plan: Callable[[], Pass], sound: bool = False, *, for_all: bool = False
) -> Iterator[None]:
    """Put a pass that plans shared memory in the place of TVM's merge."""
    before = _current(_REWRITE)
    apart = partial(transform.StorageRewrite, sound=sound, shared_apart=True)
    with (
        replaced("StorageRewrite", before or apart, for_all=for_all),
        replaced(_MERGE[1], plan, s_tir.transform, for_all=for_all),
    ):
        yield


@contextmanager
def _planned(
    plan: Callable[[], Pass], form: transform.Form, *, for_all: bool = False
) -> Iterator[None]:
    """Put a pass that plans addresses in the place of `StorageRewrite`, and ours after it.

    An arena holds nothing that threads share, so `PlanSharedMemory` takes it unless another pass
    does.
    """
    rewrite, lower, merge = map(_current, (_REWRITE, _LOWER, _MERGE))
    shared_apart = form == "arena" and merge is None
    if shared_apart:
        merge = transform.PlanSharedMemory

    def storage_rewrite() -> Pass:
        # For a target without arithmetic for float8, TVM makes wider elements of it: in front
        # of the plan, which then knows how wide.
        legalize = tirx.transform.FP8ComputeLegalize()
        behind = transform.StorageRewrite(sound=True, shared_apart=shared_apart)
        planning = Sequential([legalize, plan(), behind])

        def run(mod: IRModule) -> IRModule:
            # A planner may compile a kernel of its own, which is not to be planned by it.
            with (
                replaced("StorageRewrite", rewrite or _stock(_REWRITE)),
                replaced("LowerTVMBuiltin", lower or _stock(_LOWER)),
            ):
                return planning(mod)

        return make_pass("planned", run)

    drop = _behind(transform.DropAddresses, lower or _stock(_LOWER))
    merged = _behind(drop_for_kernels, merge or _stock(_MERGE))
    with (
        replaced("StorageRewrite", storage_rewrite, for_all=for_all),
        replaced("LowerTVMBuiltin", drop, for_all=for_all),
        replaced(_MERGE[1], merged, s_tir.transform, for_all=for_all),
    ):
        yield


def _behind(first: Callable[[], Pass], then: Callable[[], Pass]) -> Callable[[], Pass]:
    """Return what makes two passes, one after the other."""
    return lambda: Sequential([first(), then()])


_Place = tuple[ModuleType, str]
"""A module of TVM's passes, and the name by which its pipelines look one up there."""

_REWRITE: _Place = (tirx.transform, "StorageRewrite")
_LOWER: _Place = (tirx.transform, "LowerTVMBuiltin")
_MERGE: _Place = (s_tir.transform, "MergeSharedMemoryAllocations")


@dataclass(frozen=True, eq=False)
class _Replacement:
    """A pass that pipelines find in the place of another while a block runs."""

    make: Callable[[], Pass]
    thread: int  # That entered the block
    for_all: bool  # Whether threads that are in no block find it, too


class _Replaced:
    """A factory that makes a pass in the place of TVM's own, thread by thread.

    The attribute of TVM's module is set once, while any block is open, and asks here. Blocks may
    end in any order.
    """

    def __init__(self, place: _Place) -> None:
        self.stock: Callable[..., Pass] = getattr(*place)
        self.entries: list[_Replacement] = []  # In the order in which blocks began

    def current(self) -> Callable[[], Pass] | None:
        """Return what this thread finds; None for TVM's own."""
        thread, entries = get_ident(), self.entries[::-1]
        own = (entry for entry in entries if entry.thread == thread)
        entry = next(own, None) or next((entry for entry in entries if entry.for_all), None)
        return None if entry is None else entry.make

    def __call__(self, *args: Any, **options: Any) -> Pass:
        make = self.current()
        return self.stock(*args, **options) if make is None else make()


_lock = Lock()
_replaced: dict[_Place, _Replaced] = {}


def _current(place: _Place) -> Callable[[], Pass] | None:
    found = _replaced.get(place)
    return None if found is None else found.current()


def _stock(place: _Place) -> Callable[[], Pass]:
    found = _replaced.get(place) or _Replaced(place)
    return found.stock


@contextmanager
def replaced(
    name: str,
    make_pass: Callable[[], Pass],
    passes: ModuleType = tirx.transform,
    *,
    for_all: bool = False,
) -> Iterator[None]:
    """Let TVM's pipelines find another pass where they look one up.

    Those of this thread do, and with `for_all` those of threads that are in no such block.
    """
    make_pass()  # A wrong option is an error here, not in the middle of a build.
    place, entry = (passes, name), _Replacement(make_pass, get_ident(), for_all)
    with _lock:
        if place not in _replaced:
            _replaced[place] = _Replaced(place)
            setattr(passes, name, _replaced[place])
        found = _replaced[place]
        found.entries.append(entry)
    try:
        yield
    finally:
        with _lock:
            found.entries.remove(entry)
            if not found.entries:
                del _replaced[place]
                setattr(passes, name, found.stock)


Pipeline = tuple[Pass, Callable[[], Pass], Callable[[], Pass]]
"""The lowering pass, and what makes the host's and the device's last passes."""


def tir_pipeline(sound: bool = False, *, shared_memory: bool = True) -> Pipeline:
    """Return TVM's default TIR pipeline with our `StorageRewrite` in it.

    That is `sound` or gives the stock pass's IR, its mistakes included. With `shared_memory`,
    `PlanSharedMemory` plans that of GPU kernels.
    """
    check_flags(sound=sound, shared_memory=shared_memory)
    if shared_memory:
        plan = transform.PlanSharedMemory
        return _pipeline(partial(_shared_memory, plan, sound), addresses=False)
    ours = partial(replaced, "StorageRewrite", partial(transform.StorageRewrite, sound=sound))
    return _pipeline(ours, addresses=False)


def address_pipeline(form: transform.Form, **options: Any) -> Pipeline:
    """Return the same pipeline with `PlanAddresses`, whose options these are."""
    plan: Callable[[], Pass] = partial(transform.PlanAddresses, form=form, **options)
    plan()  # A wrong option is an error here, not in the middle of a build.
    return _pipeline(partial(_planned, plan, form), plan)


def ascend_pipeline(form: transform.Form = "arena", **options: Any) -> Pipeline:
    """Return the same pipeline with `AscendPlanMemory`, whose options these are."""
    transform.AscendPlanMemory("local-mem-plan", form=form, **options)  # As above
    return _pipeline(partial(_planned, partial(_ascend_plan_memory, form, **options), form))


def _pipeline(
    ours: Callable[[], AbstractContextManager[None]],
    tiles: Callable[[], Pass] = transform.PlanAddresses,
    *,
    addresses: bool = True,
) -> Pipeline:
    """Return TVM's default pipeline, which lowers inside the context that `ours` makes.

    TVM's own pipeline lowers a module for Trainium, with the pass `tiles` in the place of its
    allocator. `addresses` are taken off before the host's code generator, which refuses them.
    """
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline("default")
    lower_tiles, _, finalize_tiles = tirx.get_tir_pipeline(_TRAINIUM)

    def run(mod: IRModule) -> Any:
        if _is_for_trainium(mod):
            with replaced("TrnNaiveAllocator", tiles, trn_passes):
                return lower_tiles(mod)
        _check_scopes(mod)
        with ours():
            return lower(mod)

    def finish_device(mod: IRModule) -> IRModule:
        return (finalize_tiles if _is_for_trainium(mod) else finalize_device)()(mod)

    if addresses:
        finalize_host = _behind(transform.DropAddresses, finalize_host)
    return (
        make_pass("tir_pipeline", run),
        finalize_host,
        partial(make_pass, "finalize_device", finish_device),
    )


def _check_scopes(mod: IRModule) -> None:
    """Raise ValueError for a scope that TVM does not know; its own error names no buffer."""
    for name, func in prim_funcs(mod).items():
        with error_context("the pipeline", name):
            for op in nodes_in(func.body, tir.Block, tir.Allocation):
                for buffer in op.alloc_buffers if isinstance(op, tir.Block) else [op.buffer]:
                    storage_scope(buffer)


def _is_for_trainium(mod: IRModule) -> bool:
    return any(target_kind(func) == _TRAINIUM for func in prim_funcs(mod).values())
