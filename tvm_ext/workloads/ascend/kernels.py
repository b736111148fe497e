# SPDX-License-Identifier: Apache-2.0
"""The form of a kernel for an Ascend core, and the table of kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from passes.ir import IRModule, PrimFunc, Target
from tvm_ext.lowering import capture

Array: TypeAlias = npt.NDArray[Any]
Parameters: TypeAlias = Mapping[str, int]

#: What a kernel's buffers ask of the chip's memory.
Size = Literal["fits", "reuse", "lowest", "overflow"]
SIZES: tuple[Size, ...] = get_args(Size)

HALF = "float16"  # The type of inputs and outputs

CHIP = "ascend/910b"
"""The chip whose memory the sizes are chosen for; ``ascend/910b-llvm`` runs them on the CPU."""


@dataclass(frozen=True, eq=False)
class AscendKernel:
    """A kernel in one size: a function, what to call it with, and what must come out."""

    function: PrimFunc = field(repr=False)  # Its parameters are the inputs, then one output
    compute: Callable[..., Array] = field(repr=False)  # Of the inputs, without TVM
    # Inputs are whole numbers of at most so much, whose sums are exact, or normally distributed.
    whole: int | None = field(default=None, repr=False)
    tolerance: float = 0.0  # The largest error of the output, relative to its largest element
    name: str = ""  # Of the kernel; one of `ascend_kernels`
    # On ``ascend/910b`` the sum of all buffers fits each memory; or they fit only where some share
    # bytes, and none that a transfer from or to global memory fills or drains has to; or only where
    # those share too, with buffers that are not live at the same time; or more is live at one time
    # than there is memory.
    size: Size = "fits"
    parameters: Parameters = field(default_factory=dict)  # The parameters of the size

    @cached_property
    def mod(self) -> IRModule:
        """The module, not lowered; its function is called `name`."""
        return IRModule({self.name: self.function.with_attr("global_symbol", self.name)})

    def lower(self, target: str | Target = f"{CHIP}-llvm") -> IRModule:
        """Return the module as it stands right before storage planning."""
        return capture(self.mod, target)

    def inputs(self, seed: int = 0) -> list[Array]:
        """Make random inputs; equal seeds give equal inputs."""
        random, most = np.random.default_rng(seed), self.whole
        kinds = map(_shape_and_type, self.function.params[:-1])
        if most is None:
            return [random.standard_normal(shape).astype(dtype) for shape, dtype in kinds]
        return [random.integers(-most, most + 1, shape).astype(dtype) for shape, dtype in kinds]

    def output(self) -> Array:
        """Make an array for the output, filled with NaN: the last argument of the function."""
        shape, dtype = _shape_and_type(self.function.params[-1])
        return np.full(shape, np.nan, dtype)

    def reference(self, *inputs: Array) -> Array:
        """Compute the output with numpy."""
        return self.compute(*inputs).astype(_shape_and_type(self.function.params[-1])[1])


def _shape_and_type(param: Any) -> tuple[tuple[int, ...], str]:
    return tuple(int(extent) for extent in param.ty.shape), str(param.ty.dtype.dtype)


_KERNELS: dict[str, tuple[Callable[..., AscendKernel], Mapping[str, Parameters]]] = {}
"""By name: what builds a kernel, and with which arguments in each size."""


def ascend(
    **sizes: int | tuple[int, ...],
) -> Callable[[Callable[..., AscendKernel]], Callable[..., AscendKernel]]:
    """Register a builder as the kernel of its name; arguments are for all `SIZES`, or for each."""

    def add(build: Callable[..., AscendKernel]) -> Callable[..., AscendKernel]:
        each = [(v,) * len(SIZES) if isinstance(v, int) else v for v in sizes.values()]
        arguments = (dict(zip(sizes, values, strict=True)) for values in zip(*each, strict=True))
        _KERNELS[build.__name__] = build, dict(zip(SIZES, arguments, strict=True))
        return build

    return add


def ascend_kernels() -> dict[str, str]:
    """Return a line for people on each of the kernels for Ascend cores, by name."""
    return {
        name: (build.__doc__ or "").partition("\n")[0].rstrip(".")
        for name, (build, _) in _KERNELS.items()
    }


def ascend_kernel(name: str, size: Size = "fits", **parameters: int) -> AscendKernel:
    """Build a kernel, one of `ascend_kernels`, for the memory of an Ascend 910B core.

    The size is what its buffers ask of the memory; see `AscendKernel`. Parameters, such as
    ``tiles`` or ``slots``, stand in the place of those of the size: the result may then be of
    another one. Raises ValueError if there is no such kernel or size, or a parameter does not go
    with the others, and TypeError if the kernel has no such parameter.
    """
    if name not in _KERNELS:
        raise ValueError(f"unknown kernel {name!r}; the kernels are {', '.join(_KERNELS)}")
    if size not in SIZES:
        raise ValueError(f"kernel {name!r}: size must be one of {', '.join(SIZES)}, got {size!r}")
    build, sizes = _KERNELS[name]
    chosen = {**sizes[size], **parameters}
    for what, value in chosen.items():
        if type(value) is not int or value < 1:
            raise ValueError(f"kernel {name!r}: {what} must be a positive integer, got {value!r}")
    return replace(build(**chosen), name=name, size=size, parameters=chosen)


def parts(kernel: str, total: int, part: int, what: str) -> int:
    """Return how many parts there are; a `ValueError` says so when they do not come out even."""
    if total % part:
        raise ValueError(f"kernel {kernel!r}: {what} must be a multiple of {part}, got {total}")
    return total // part
