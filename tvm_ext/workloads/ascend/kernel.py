# SPDX-License-Identifier: Apache-2.0
"""What a kernel for an Ascend core is, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import tvm
from tvm import tirx
from tvm.target import Target

from tvm_ext.lowering import capture

Array: TypeAlias = npt.NDArray[Any]
Draw: TypeAlias = Callable[[np.random.Generator], Array]
Reference: TypeAlias = Callable[..., Array]
Parameters: TypeAlias = Mapping[str, int | str]

#: What a kernel's buffers ask of the chip's memory.
Size = Literal["fits", "reuse", "lowest", "overflow"]
SIZES: tuple[Size, ...] = get_args(Size)

#: What the elements of inputs and outputs can be.
DTYPES = ("float16", "float32")

CHIP = "ascend/910b"
"""The chip whose memory the sizes are chosen for; ``ascend/910b-llvm`` runs them on the CPU."""


@dataclass(frozen=True, eq=False)
class Program:
    """A function, what to call it with, and what must come out."""

    function: tirx.PrimFunc  # Its parameters are the inputs and then one output
    draws: Sequence[Draw]  # Make the inputs
    reference: Reference  # Computes the output from the inputs, without TVM
    # The largest error of an element of the output, relative to the largest element of the expected
    # one; 0 where all sums and products are exact.
    tolerance: float = 0.0


@dataclass(frozen=True, eq=False)
class AscendKernel:
    """A kernel in one size."""

    name: str  # Of the kernel; one of `ascend_kernels`
    # On ``ascend/910b`` the sum of all buffers fits each memory; or they fit only where some share
    # bytes, and none that a transfer from or to global memory fills or drains has to; or only where
    # those share too, with buffers that are not live at the same time; or more is live at one time
    # than there is memory.
    size: Size
    parameters: Parameters  # What the size stands for
    mod: tvm.IRModule = field(repr=False)  # Not lowered; its function is called `name`
    tolerance: float  # As in `Program`
    _program: Program = field(repr=False)

    def lower(self, target: str | Target = f"{CHIP}-llvm") -> tvm.IRModule:
        """Return the module as it stands right before storage planning."""
        return capture(self.mod, target)[-1]

    def inputs(self, seed: int = 0) -> list[Array]:
        """Make random inputs; equal seeds give equal inputs."""
        random = np.random.default_rng(seed)
        return [draw(random) for draw in self._program.draws]

    def output(self) -> Array:
        """Make an array for the output, filled with NaN: the last argument of the function."""
        ty = self._program.function.params[-1].ty
        return np.full([int(extent) for extent in ty.shape], np.nan, str(ty.dtype.dtype))

    def reference(self, *inputs: Array) -> Array:
        """Compute the output with numpy."""
        dtype = self._program.function.params[-1].ty.dtype.dtype
        return self._program.reference(*inputs).astype(str(dtype))


_KERNELS: dict[str, tuple[Callable[..., Program], Mapping[str, Parameters]]] = {}
"""By name: what builds a kernel, and with which arguments in each size."""


def ascend(
    *, fits: Parameters, reuse: Parameters, lowest: Parameters, overflow: Parameters
) -> Callable[[Callable[..., Program]], Callable[..., Program]]:
    """Register a builder as the kernel of its name, with its arguments for each of `SIZES`."""
    by_size = {"fits": fits, "reuse": reuse, "lowest": lowest, "overflow": overflow}

    def add(build: Callable[..., Program]) -> Callable[..., Program]:
        _KERNELS[build.__name__] = build, by_size
        return build

    return add


def ascend_kernels() -> dict[str, str]:
    """Return a line for people on each of the kernels for Ascend cores, by name."""
    return {
        name: (build.__doc__ or "").partition("\n")[0].rstrip(".")
        for name, (build, _) in _KERNELS.items()
    }


def ascend_kernel(name: str, size: Size = "fits", **parameters: int | str) -> AscendKernel:
    """Build a kernel, one of `ascend_kernels`, for the memory of an Ascend 910B core.

    The size is what its buffers ask of the memory; see `AscendKernel`. Parameters are arguments of
    the kernel's builder, such as ``tiles``, ``slots`` or ``dtype``, in the place of those that the
    size stands for: the result may then be of another size.

    Raises ValueError if there is no kernel of this name, no such size, or a parameter does not go
    with the others, and TypeError if the kernel has no such parameter.
    """
    if name not in _KERNELS:
        raise ValueError(f"unknown kernel {name!r}; the kernels are {', '.join(_KERNELS)}")
    if size not in SIZES:
        raise ValueError(f"kernel {name!r}: size must be one of {', '.join(SIZES)}, got {size!r}")
    build, sizes = _KERNELS[name]
    chosen = {**sizes[size], **parameters}
    for what, value in chosen.items():
        if what == "dtype" and value not in DTYPES:
            raise ValueError(
                f"kernel {name!r}: dtype must be one of {', '.join(DTYPES)}, got {value!r}"
            )
        if what != "dtype" and (type(value) is not int or value < 1):
            raise ValueError(f"kernel {name!r}: {what} must be a positive integer, got {value!r}")
    program = build(**chosen)
    mod = tvm.IRModule({name: program.function.with_attr("global_symbol", name)})
    return AscendKernel(name, size, chosen, mod, program.tolerance, program)


def parts(kernel: str, total: int, part: int, what: str) -> int:
    """Return how many parts there are; a `ValueError` says so when they do not come out even."""
    if total % part:
        raise ValueError(f"kernel {kernel!r}: {what} must be a multiple of {part}, got {total}")
    return total // part


def whole(shape: Sequence[int], dtype: str, high: int = 8) -> Draw:
    """Return a drawer of whole numbers from ``-high`` to ``high``, whose sums are exact."""
    return lambda random: random.integers(-high, high + 1, tuple(shape)).astype(dtype)


def normal(shape: Sequence[int], dtype: str) -> Draw:
    """Return a drawer of normally distributed numbers."""
    return lambda random: random.standard_normal(tuple(shape)).astype(dtype)
