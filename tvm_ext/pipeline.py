"""Our passes in TVM's own pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import RLock
from typing import Any

import tvm
from tvm import tirx
from tvm.ir.transform import Pass, PassContext, Sequential, module_pass

from tvm_ext import transform

PIPELINE = "tvm_ext"
"""The name by which ``tvm.tirx.build(mod, target, pipeline=...)`` knows our pipeline.

``tvm_ext.address`` and ``tvm_ext.arena`` are those with `PlanAddresses`.
"""

# TVM's pipelines look `StorageRewrite` up each time they run; while one of ours
# runs, they find ours there. One thread at a time.
_stock_lock = RLock()


@contextmanager
def use_storage_rewrite(
    *, detect_inplace: bool = True, enable_reuse: bool = True, sound: bool = False
) -> Iterator[None]:
    """Put our `StorageRewrite` in the stock pass's place while a block runs.

    Code inside the block calls TVM as usual: ``tvm.tirx.build``, ``tvm.compile``,
    or a pipeline of its own that asks ``tvm.tirx.transform`` for the pass. Other
    threads that enter such a block wait for their turn; those that build outside
    of one see our pass too while a block is open.

    Parameters
    ----------
    detect_inplace, enable_reuse, sound : bool
        As in `tvm_ext.transform.StorageRewrite`.

    Examples
    --------
    >>> with tvm_ext.use_storage_rewrite():
    ...     executable = tvm.compile(mod, target="llvm")
    """

    def storage_rewrite() -> Pass:
        return transform.StorageRewrite(
            detect_inplace=detect_inplace, enable_reuse=enable_reuse, sound=sound
        )

    with _replaced("StorageRewrite", storage_rewrite):
        yield


@contextmanager
def use_plan_addresses(
    planner: str = "best", form: transform.Form = "arena", **options: Any
) -> Iterator[None]:
    """Put `PlanAddresses` in the place of the stock `StorageRewrite` while a block runs.

    What holds for `use_storage_rewrite` holds here. `DropAddresses` runs before each
    `LowerTVMBuiltin`, so that modules with addresses build for a CPU too.

    Parameters
    ----------
    planner, form, **options
        As in `tvm_ext.transform.PlanAddresses`.

    Examples
    --------
    >>> with tvm_ext.pipeline.use_plan_addresses(scopes=["local.UB"]):
    ...     executable = tvm.compile(mod, target="llvm")
    """

    def plan_addresses() -> Pass:
        return transform.PlanAddresses(planner, form, **options)

    plan_addresses()  # A wrong option is an error here, not in the middle of a build.
    with _stock_lock:
        stock = tirx.transform.LowerTVMBuiltin

        def lower_tvm_builtin() -> Pass:
            return Sequential([transform.DropAddresses(), stock()])

        with (
            _replaced("StorageRewrite", plan_addresses),
            _replaced("LowerTVMBuiltin", lower_tvm_builtin),
        ):
            yield


@contextmanager
def _replaced(name: str, make_pass: Callable[[], Pass]) -> Iterator[None]:
    """Let TVM's pipelines find another pass where they look one up."""
    with _stock_lock:
        stock = getattr(tirx.transform, name)
        setattr(tirx.transform, name, make_pass)
        try:
            yield
        finally:
            setattr(tirx.transform, name, stock)


Pipeline = tuple[Pass, Callable[[], Pass], Callable[[], Pass]]
"""The lowering pass, and what makes the host's and the device's last passes."""


def tir_pipeline(stock: str = "default") -> Pipeline:
    """Return a stock TIR pipeline with our `StorageRewrite` in it.

    Parameters
    ----------
    stock : str
        The name of the pipeline to build on.

    Returns
    -------
    tuple
        What ``tvm.tirx.get_tir_pipeline`` returns.
    """
    return _lowered_within(use_storage_rewrite, stock)


def address_pipeline(form: transform.Form, stock: str = "default", **options: Any) -> Pipeline:
    """Return a stock TIR pipeline with `PlanAddresses` in the place of its `StorageRewrite`.

    Parameters
    ----------
    form : {"address", "arena"}
        How plans are written.
    stock : str
        The name of the pipeline to build on.
    **options
        As in `tvm_ext.transform.PlanAddresses`; the memory is by default that of the target
        that is built for.

    Returns
    -------
    tuple
        What ``tvm.tirx.get_tir_pipeline`` returns.
    """

    def replacement() -> AbstractContextManager[None]:
        return use_plan_addresses(form=form, **options)

    lower, finalize_host, finalize_device = _lowered_within(replacement, stock)

    def finalize_without_addresses() -> Pass:
        return Sequential([transform.DropAddresses(), finalize_host()])

    return lower, finalize_without_addresses, finalize_device


def _lowered_within(
    replacement: Callable[[], AbstractContextManager[None]], stock: str
) -> Pipeline:
    """Return a stock pipeline that lowers inside a context, made anew each time."""
    lower, finalize_host, finalize_device = tirx.get_tir_pipeline(stock)

    def lower_with_ours(mod: tvm.IRModule, _ctx: PassContext) -> Any:
        with replacement():
            return lower(mod)

    ours = module_pass(lower_with_ours, opt_level=0, name="tvm_ext.tir_pipeline")
    return ours, finalize_host, finalize_device


tirx.compilation_pipeline.register_tir_pipeline(PIPELINE, tir_pipeline)
for _form in transform.FORMS:
    tirx.compilation_pipeline.register_tir_pipeline(
        f"{PIPELINE}.{_form}", partial(address_pipeline, _form)
    )
