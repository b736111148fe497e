# SPDX-License-Identifier: Apache-2.0
"""What a server's module takes from the device: the number that `ServedMemory` has, and the pool's.

LLaMA with a paged KV cache, planned for CUDA. Its functions run on the virtual machine at their
bounds, in several orders, with the last result of each held, and compute nothing. On a CPU the pool
holds the sizes of the dimensions, too: a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from measured_memory import IdleMachine
from paged_llama import Shape, bounds_of, module_of

from passes.gmem import GMEMOptions, ServedMemory, plan_gmem, served_memory
from tvm_ext.lowering import capture_relax, known_target
from tvm_ext.transform import GMEMAllocate


class Server:
    """A model's functions on the virtual machine, without their kernels."""

    def __init__(self, shape: Shape, kind: str = "cuda") -> None:
        self._sizes = bounds_of(shape)
        options = GMEMOptions(target=known_target(kind))
        lowered = capture_relax(module_of(shape), "llvm")
        self.served: ServedMemory = served_memory(plan_gmem(lowered, options=options), options)
        self._machine = IdleMachine(GMEMAllocate(target=options.target)(lowered))

    def taken(self, order: Iterable[str], *, hold: bool = True) -> int:
        """Return the bytes that the pool takes for calls of functions, one after the other."""
        calls = [(name, self._machine.arguments(name, self._sizes)) for name in order]
        return self._machine.in_order(calls, hold)


def orders(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield some orders in which each function is called twice."""
    forth = tuple(names)
    back = forth[::-1]
    yield from ((*forth, *forth), (*back, *back), (*forth, *back))
    yield tuple(name for name in forth for _ in range(2))
