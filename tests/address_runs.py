# SPDX-License-Identifier: Apache-2.0
"""Builds functions with and without a plan, runs them on equal inputs and compares all memory.

In arena form each arena is filled with a pattern first, so that a byte that is read before it is
written shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi
from llvm_level import at_level, functions_at_level
from measured_memory import value_of
from tvm import tirx
from tvm.ir.transform import Pass, Sequential, module_pass
from tvm.s_tir import renew_defs
from tvm.tirx import (
    AllocBuffer,
    Bind,
    BufferStore,
    DeclBuffer,
    For,
    ForKind,
    IntImm,
    SeqStmt,
    is_buffer_var,
)

from passes.addresses.transform import DropAddresses, PlanAddresses

POISON = 0xFF
"""In every byte: no number as a float, -1 as an integer."""


def identity() -> Pass:
    """Return the pass that plans nothing."""
    return module_pass(lambda mod, _ctx: mod, opt_level=0, name="identity")


def poisoned(plan: Pass) -> Pass:
    """Return a pass that runs `plan` and fills every arena with a pattern where it is made."""

    def transform(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        mod = plan(mod).clone()
        for var in mod.get_global_vars():
            if isinstance(mod[var], tirx.PrimFunc):
                mod[var] = mod[var].with_body(with_poison(mod[var].body))
        return mod

    return module_pass(transform, opt_level=0, name="poisoned")


def with_poison(body: Any) -> Any:
    def fill(op: AllocBuffer, _mutator: Any) -> Any:
        if not op.buffer.name.startswith("arena_"):
            return op
        return SeqStmt([op, filled(op.buffer)])

    return tvm_ffi.structural_mutate(body, (AllocBuffer, fill))


def filled(buffer: Any) -> For:
    """Return the loop that fills a buffer of ``uint8`` with the pattern."""
    byte = tirx.Var("byte", "int32")
    store = BufferStore(buffer, IntImm("uint8", POISON), [byte])
    return For(byte, IntImm("int32", 0), buffer.ty.shape[0], ForKind.SERIAL, store)


def at_addresses(plan: Pass) -> Pass:
    """Return a pass that plans, and then does what a code generator does that goes by addresses.

    All allocations that have one address become views of one piece of memory, which begins at
    address 0. It is filled with a pattern where it is made.
    """

    def transform(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        mod = plan(mod).clone()
        for var in mod.get_global_vars():
            size = planned_bytes(tvm.IRModule({"main": mod[var]}))
            mod[var] = mod[var].with_body(_with_memory(mod[var].body, size))
        return mod

    return module_pass(transform, opt_level=0, name="at_addresses")


def _with_memory(body: Any, size: int) -> Any:
    memory = tirx.decl_buffer([max(size, 1)], "uint8", "arena_of_addresses", layout=None)

    def view(op: AllocBuffer, _mutator: Any) -> Any:
        addresses = op.buffer.ty.allocated_addr
        if not len(addresses):
            return op
        (address,) = addresses
        place = tirx.address_of(tirx.BufferLoad(memory, [address]))
        begin = tirx.Var("address", place.ty)
        return SeqStmt([Bind(begin, place), DeclBuffer(op.buffer, data=begin)])

    body = tvm_ffi.structural_mutate(body, (AllocBuffer, view))
    return SeqStmt([AllocBuffer(memory), filled(memory), body])


def planned_bytes(mod: tvm.IRModule) -> int:
    """Return the bytes of all arenas, or up to which allocations with an address reach."""
    arenas, ends = [0], [0]

    def note(op: AllocBuffer) -> None:
        ty, dtype = op.buffer.ty, op.buffer.ty.dtype.dtype
        size = -(-int(ty.shape[0].value) * dtype.bits * dtype.lanes // 8)
        if op.buffer.name.startswith("arena_"):
            arenas.append(size)
        ends.extend(int(address) + size for address in ty.allocated_addr)

    for func in mod.functions.values():
        tvm_ffi.structural_walk(func, (AllocBuffer, note))
    return sum(arenas) or max(ends)


def addresses(where: Any) -> dict[str, tuple[int, ...]]:
    """Return the addresses of all allocations in a module or a function, by name."""
    found: dict[str, tuple[int, ...]] = {}

    def note(op: AllocBuffer) -> None:
        found[op.buffer.name] = tuple(int(a) for a in op.buffer.ty.allocated_addr)

    tvm_ffi.structural_walk(where, (AllocBuffer, note))
    return found


def num_arenas(mod: tvm.IRModule) -> int:
    """Return how many arenas there are in a module."""
    return len(re.findall(r"\barena_\w+ = T\.alloc_", mod.script()))


def build(mod: tvm.IRModule, plan: Pass, target: Any = "llvm") -> Callable[..., None]:
    """Build a module with a pass in the place of `StorageRewrite`; lowered up to there or not."""
    target = at_level(target)
    mod = functions_at_level(mod, target)
    with in_place_of_storage_rewrite(plan):
        return tirx.build(mod, target=target)


def built_under(
    func: tirx.PrimFunc, plans: Mapping[str, Pass], target: Any = "llvm"
) -> dict[str, Callable[..., None]]:
    """Build a function under each plan, all in one module: that takes little longer than one."""
    symbols = {name: f"plan_{at}" for at, name in enumerate(plans)}

    def transform(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        alone = {name: tvm.IRModule({"main": mod[one]}) for name, one in symbols.items()}
        return tvm.IRModule({symbols[name]: plans[name](alone[name])["main"] for name in plans})

    mod = tvm.IRModule(
        {one: renew_defs(func).with_attr("global_symbol", one) for one in symbols.values()}
    )
    built = build(mod, module_pass(transform, opt_level=0, name="every plan"), target)
    return {name: built[one] for name, one in symbols.items()}


@contextmanager
def in_place_of_storage_rewrite(plan: Pass) -> Iterator[None]:
    """Let TVM's pipelines run a pass, and take addresses off behind it, while a block runs."""
    stock, rewrite = tirx.transform.LowerTVMBuiltin, tirx.transform.StorageRewrite

    def lower_tvm_builtin() -> Pass:
        return Sequential([DropAddresses(), stock()])

    def run(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        # The search compiles a kernel of its own the first time.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tirx.transform, "StorageRewrite", rewrite)
            patch.setattr(tirx.transform, "LowerTVMBuiltin", stock)
            return plan(mod)

    with pytest.MonkeyPatch.context() as patch:
        planned = module_pass(run, opt_level=0, name="planned")
        patch.setattr(tirx.transform, "StorageRewrite", lambda: planned)
        patch.setattr(tirx.transform, "LowerTVMBuiltin", lower_tvm_builtin)
        yield


def calls_extern_code(mod: tvm.IRModule) -> bool:
    """Whether a module calls functions by name, which would have to be linked."""
    return any("call_extern" in func.script() for func in mod.functions.values())


def arguments(
    func: tirx.PrimFunc, seed: int = 0, sizes: Mapping[str, int] | None = None
) -> list[Any]:
    """Make random arguments for a function: small whole numbers.

    Their sums and products are exact, so that results do not depend on how LLVM orders and fuses
    floating-point operations, which is another for each way to address memory. Integers are 0
    or 1, and so are within bounds where they are indices.
    """
    random = np.random.default_rng(seed)
    values = dict(sizes or {})
    made: list[Any] = []
    for param in func.params:
        if is_buffer_var(param):
            shape = [value_of(extent, values, 5) for extent in param.ty.shape]
            made.append(_array(random, shape, str(param.ty.dtype.dtype)))
        else:
            made.append(values.setdefault(param.name, 5))
    return made


def _array(random: np.random.Generator, shape: list[int], dtype: str) -> Any:
    if "x" in dtype:  # A vector element is as many scalars, next to one another.
        scalar, lanes = dtype.split("x")
        flat = _array(random, [*shape, int(lanes)], scalar).numpy()
        made = tvm.runtime.empty(shape, dtype)
        made.copyfrom(flat)
        return made
    if dtype.startswith(("bool", "int", "uint")):
        return tvm.runtime.tensor(random.integers(0, 2, shape).astype(dtype))
    numbers = random.integers(-8, 8, shape)
    if dtype == "bfloat16":
        return tvm.runtime.tensor(numbers.astype(ml_dtypes.bfloat16))
    return tvm.runtime.tensor(numbers.astype(dtype))


def memory_after(
    mod: tvm.IRModule,
    plan: Pass,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    target: Any = "llvm",
) -> list[bytes]:
    """Build, run once, and return the bytes of every array argument afterwards."""
    ((var, func),) = mod.functions.items()
    args = arguments(func, seed, sizes)
    name = func.attrs.get("global_symbol", var.name_hint) if func.attrs else var.name_hint
    return bytes_after(build(mod, plan, target)[str(name)], args)


def bytes_after(run: Callable[..., None], args: Sequence[Any]) -> list[bytes]:
    """Run a function, and return the bytes of every array argument afterwards."""
    run(*args)
    return [arg.numpy().tobytes() for arg in args if isinstance(arg, tvm.runtime.Tensor)]


def assert_same_results(
    mod: tvm.IRModule,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
    target: Any = "llvm",
    **options: Any,
) -> None:
    """Check that both forms compute what the unplanned module does, bit for bit."""
    (func,) = mod.functions.values()
    forms = {form: poisoned(PlanAddresses(form=form, **options)) for form in ("address", "arena")}
    found = {}
    for form, run in built_under(func, {"no plan": identity(), **forms}, target).items():
        found[form] = bytes_after(run, arguments(func, seed, sizes))
        assert found[form] == found["no plan"], form
