# SPDX-License-Identifier: Apache-2.0
"""Relax modules of one operator, and of small networks, for the tests of LayerGroup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from guarded_memory import guarded
from llvm_level import at_level
from tvm import relax

from tvm_ext import transform
from tvm_ext.relax_passes import relax_stages

Shape = tuple[int, ...]


def module(
    shapes: Sequence[Shape],
    body: Callable[..., Any],
    *,
    inputs: int = 1,
    dtype: str | Sequence[str] = "float32",
) -> tvm.IRModule:
    """Return a module whose function `main` applies `body` to tensors of these shapes.

    Parameters
    ----------
    shapes
        Of the parameters: inputs first, then weights.
    body
        Called with the builder's `emit` and the parameters; returns the results.
    inputs
        How many parameters are inputs.
    dtype
        The type of all parameters, or of each.
    """
    builder = relax.BlockBuilder()
    types = [dtype] * len(shapes) if isinstance(dtype, str) else dtype
    specs = enumerate(zip(shapes, types, strict=True))
    params = [relax.Var(f"p{i}", relax.TensorType(*spec)) for i, spec in specs]
    with builder.function("main", params, attrs={"num_input": inputs}):
        with builder.dataflow():
            results = body(builder.emit, *params)
            result = builder.emit_output(
                relax.Tuple(results) if isinstance(results, (list, tuple)) else results
            )
        builder.emit_func_output(result)
    return builder.get()


def lowered(mod: tvm.IRModule, *, fuse: bool = False) -> tvm.IRModule:
    """Return a module with its operators as calls of kernels."""
    passes = [relax.transform.LegalizeOps()]
    if fuse:
        passes += [
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    return tvm.ir.transform.Sequential(passes)(mod)


def kernels(mod: tvm.IRModule) -> dict[str, tvm.tirx.PrimFunc]:
    """Return the kernels of a module by name."""
    return {
        str(variable.name_hint): function
        for variable, function in mod.functions.items()
        if isinstance(function, tvm.tirx.PrimFunc)
    }


def arrays(mod: tvm.IRModule, seed: int = 0, name: str = "main") -> list[np.ndarray]:
    """Make random arguments for a function of a module."""
    rng = np.random.default_rng(seed)
    made = []
    for param in mod[name].params:
        shape = [int(extent) for extent in param.ty.shape.values]
        dtype = str(param.ty.dtype.dtype if hasattr(param.ty.dtype, "dtype") else param.ty.dtype)
        if dtype.startswith("float"):
            made.append(rng.uniform(-1, 1, shape).astype(dtype))
        else:
            made.append(rng.integers(-8, 8, shape).astype(dtype))
    return made


def positive(args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return arguments of which those of one axis are variances or the like: above zero."""
    return [abs(arg) + 0.5 if arg.ndim == 1 else arg for arg in args]


def run(mod: tvm.IRModule, args: Sequence[np.ndarray], name: str = "main") -> list[np.ndarray]:
    """Build a module for the CPU with TVM's own pipeline, and call a function of it.

    The local memory of groups is guarded: see `guarded_memory`.
    """
    executable = tvm.compile(guarded(mod), target=at_level("llvm"))
    return call(relax.VirtualMachine(executable, tvm.cpu()), args, name)


def build_guarded(mod: tvm.IRModule, target: Any, **options: Any) -> tuple[Any, int]:
    """Build a module by the public pipeline with groups whose local memory is guarded.

    Returns a virtual machine, and how many kernels of groups there are. `options` are those of
    `LayerGroup`.
    """
    target = at_level(target)
    stages = relax_stages(target)
    with target:
        for one in stages.first:
            mod = one(mod)
        mod = transform.LayerGroup(target, **options)(mod)
        count = sum("_group_" in str(variable.name_hint) for variable in mod.functions)
        rest = [*stages.lower, transform.GMEMAllocate(target=target), *stages.behind]
        lower = tvm.ir.transform.Sequential(rest)
        built = tvm.compile(guarded(mod), target=target, relax_pipeline=lower)
    return relax.VirtualMachine(built, tvm.cpu()), count


def check_against_stock(
    mod: tvm.IRModule, target: Any, args: Sequence[np.ndarray], **options: Any
) -> int:
    """Check that a module's numbers with guarded groups are those of TVM's own build.

    Returns how many groups there are.
    """
    grouped, count = build_guarded(mod, target, **options)
    stock = relax.VirtualMachine(tvm.compile(mod, target=at_level("llvm")), tvm.cpu())
    check_same(call(grouped, args), call(stock, args))
    return count


def check_same(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> None:
    """Check that results have the same numbers, to the last bit."""
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def call(vm: Any, args: Sequence[np.ndarray], name: str = "main") -> list[np.ndarray]:
    """Call a function; return its results, tuples flattened."""
    return flat(vm[name](*[tvm.runtime.tensor(array) for array in args]))


def flat(value: Any) -> list[np.ndarray]:
    """Return the arrays in nested tuples; a shape is one, too."""
    if isinstance(value, tvm.runtime.Tensor):
        return [value.numpy()]
    if isinstance(value, tvm.runtime.ShapeTuple):
        return [np.array(list(value))]
    return [array for part in value for array in flat(part)]
