# SPDX-License-Identifier: Apache-2.0
"""What a server's module takes from the device: the number that `ServedMemory` has, and the pool's.

LLaMA with a paged KV cache, planned for CUDA. Its functions run on the virtual machine at their
bounds, in several orders, with the last result of each held; kernels and the cache are skipped, so
that nothing is computed and no weights are needed: only storages are allocated, from the pool of
this machine's CPU. On a CPU that pool holds the sizes of the dimensions, too: a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tvm
from measured_memory import vm_bytes
from paged_llama import Shape, bounds_of, module_of
from tvm import relax
from tvm.ir.transform import Sequential
from tvm.target import Target

from passes.gmem import GMEMOptions, ServedMemory, plan_gmem, served_memory
from tvm_ext.lowering import capture_relax, known_target
from tvm_ext.relax_passes import relax_stages
from tvm_ext.transform import GMEMAllocate


class Server:
    """A model's functions on the virtual machine, without their kernels."""

    def __init__(self, shape: Shape, kind: str = "cuda") -> None:
        target = known_target(kind)
        self._mod, self._sizes = module_of(shape), bounds_of(shape)
        lowered = capture_relax(self._mod, "llvm")
        options = GMEMOptions(target=target)
        self.served: ServedMemory = served_memory(plan_gmem(lowered, options=options), options)
        self._kernels = {
            str(v.name_hint)
            for v, func in lowered.functions.items()
            if not isinstance(func, relax.Function)
        }
        behind = Sequential(relax_stages("llvm").behind)
        planned = GMEMAllocate(target=target)(lowered)
        quick = Target({"kind": "llvm", "opt-level": 0})  # The kernels do not run.
        self._library = tvm.compile(planned, target=quick, relax_pipeline=behind).jit()
        self._arrays: dict[str, tvm.runtime.Tensor] = {}
        self._arguments = {
            name: [self._argument(param.ty) for param in self._mod[name].params]
            for name in self.served.functions
        }

    def _argument(self, ty: Any) -> Any:
        """Return what a function is called with: memory that is never touched, shared by all."""
        if isinstance(ty, relax.TupleType):
            return tuple(self._argument(field) for field in ty.fields)
        if not isinstance(ty, relax.TensorType):
            return tvm.runtime.ShapeTuple([1])  # In the place of the cache.
        dims = [
            self._sizes[str(dim.name)] if isinstance(dim, tvm.tirx.Var) else int(dim)
            for dim in ty.shape.values
        ]
        key = f"{dims} {ty.dtype}"
        if key not in self._arrays:
            self._arrays[key] = tvm.runtime.empty(dims, str(ty.dtype))
        return self._arrays[key]

    def taken(self, order: Iterable[str], *, hold: bool = True) -> int:
        """Return the bytes that the pool takes for calls of functions, one after the other."""
        machine = relax.VirtualMachine(self._library, tvm.cpu())
        held: dict[str, Any] = {}

        def run() -> None:
            for name in order:
                result = machine[name](*self._arguments[name])
                if hold:
                    held[name] = result
                del result

        return vm_bytes(machine, run, lambda name: name in self._kernels or "kv_cache" in name)


def orders(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield some orders in which each function is called twice."""
    forth = tuple(names)
    back = forth[::-1]
    yield from ((*forth, *forth), (*back, *back), (*forth, *back))
    yield tuple(name for name in forth for _ in range(2))
