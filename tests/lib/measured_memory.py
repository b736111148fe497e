# SPDX-License-Identifier: Apache-2.0
"""What a Relax function allocates at given sizes, and what the virtual machine takes for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import tvm
from tvm import DataType, relax
from tvm.ir import Op
from tvm.ir.transform import Sequential
from tvm.sym import Analyzer
from tvm.target import Target
from tvm.tirx import Evaluate, IntImm, PrimFunc
from tvm.tirx.analysis import undefined_vars

from passes.relax.sizes import element_bytes
from tvm_ext.relax_passes import relax_stages

PAGE = 4096
"""Bytes that TVM's pooled allocator rounds each allocation up to."""

_ALLOC_STORAGE = Op.get("relax.memory.alloc_storage")
_ALLOC_TENSOR = Op.get("relax.builtin.alloc_tensor")


class Watch:
    """What a machine's pooled allocator takes from the device, and which way branches go.

    The allocator keeps what is freed, and hands it out again for a request of the same rounded
    size; only when it has none does it ask the device. So each storage at an address that was not
    seen before is memory from the device. On a CPU the `heaps` that hold symbolic dimensions come
    from it, too. What is called by a name that `skips` is true of does not run.
    """

    def __init__(
        self, skips: Callable[[str], bool] = lambda _name: False, heaps: bool = True
    ) -> None:
        self._skips, self._heaps = skips, heaps
        self._tensor_at = tvm.get_global_func("vm.builtin.alloc_tensor")
        self._taken: dict[int, int] = {}
        self.decisions: list[bool] = []
        tvm.get_global_func("vm.builtin.memory_manager.clear")()

    def __call__(self, machine: relax.VirtualMachine, run: Callable[[], object]) -> Watch:
        """Watch a machine, which has the pooled allocator, during a run of its functions."""
        machine.set_instrument(self._note)
        try:
            run()
        finally:
            machine.set_instrument(lambda *_: None)
        return self

    @property
    def nbytes(self) -> int:
        """The bytes that were taken."""
        return sum(self._taken.values())

    def _note(self, _func: Any, name: str, before: bool, result: Any, *arguments: Any) -> Any:
        if before:
            return relax.VMInstrumentReturnKind.SKIP_RUN if self._skips(name) else None
        if name == "vm.builtin.alloc_storage":
            (count,) = arguments[1]
            one = self._tensor_at(result, 0, tvm.runtime.ShapeTuple([0]), tvm.DataType("uint8"))
            self._taken[one.data_ptr()] = -(-int(count) // PAGE) * PAGE
        elif name == "vm.builtin.alloc_shape_heap" and self._heaps:
            self._taken[result.data_ptr()] = -(-8 * int(arguments[1]) // PAGE) * PAGE
        elif name == "vm.builtin.read_if_cond":
            self.decisions.append(bool(result))
        return None


def watch(machine: relax.VirtualMachine, run: Callable[[], object]) -> Watch:
    """Watch one run of a machine."""
    return Watch()(machine, run)


def vm_bytes(machine: relax.VirtualMachine, run: Callable[[], object], *skips: Any) -> int:
    """Return the bytes of storages that a run takes."""
    return Watch(*skips, heaps=False)(machine, run).nbytes


def value_of(extent: Any, sizes: Mapping[str, int], default: int | None = None) -> int:
    """Return what a dimension is where symbolic ones have these values, by name."""
    analyzer = Analyzer()
    for variable in undefined_vars(extent):
        name = str(variable.name)
        size = sizes[name] if default is None else sizes.get(name, default)
        analyzer.bind(variable, IntImm(variable.ty, size))
    return int(analyzer.simplify(extent))


class IdleMachine:
    """The functions of a planned module on the virtual machine, without what they compute.

    Kernels are empty, and packed functions that keep or cache tensors are skipped: only storages
    are allocated, from the pool of this machine's CPU, and no weights are needed.
    """

    def __init__(self, planned: tvm.IRModule) -> None:
        self._functions = functions_of(planned)
        empty = {
            v: f.with_body(Evaluate(0)) if isinstance(f, PrimFunc) else f
            for v, f in planned.functions.items()
        }
        mod = tvm.IRModule(empty, attrs=planned.attrs, global_infos=planned.global_infos)
        quick = Target({"kind": "llvm", "opt-level": 0})
        behind = Sequential(relax_stages("llvm").behind)
        self._library = tvm.compile(mod, target=quick, relax_pipeline=behind).jit()
        self._arrays: dict[str, tvm.runtime.Tensor] = {}

    def arguments(self, name: str, sizes: Mapping[str, int], default: int = 1) -> list[Any]:
        """Return what a function is called with: memory that is never touched, shared by all."""
        return [self._argument(p.ty, sizes, default) for p in self._functions[name].params]

    def _argument(self, ty: Any, *sizes: Any) -> Any:
        if isinstance(ty, relax.TupleType):
            return tuple(self._argument(field, *sizes) for field in ty.fields)
        if isinstance(ty, relax.ShapeType) and ty.values is not None:
            return tvm.runtime.ShapeTuple([value_of(one, *sizes) for one in ty.values])
        if not isinstance(ty, relax.TensorType):
            return tvm.runtime.ShapeTuple([1])  # In the place of a cache
        dims = [value_of(one, *sizes) for one in ty.shape.values]
        key = f"{dims} {ty.dtype}"
        if key not in self._arrays:
            self._arrays[key] = tvm.runtime.empty(dims, str(ty.dtype))
        return self._arrays[key]

    def in_order(self, calls: Iterable[tuple[str, Sequence[Any]]], hold: bool = True) -> int:
        """Return what one machine takes for calls, with the last result of each function held."""
        machine, held = relax.VirtualMachine(self._library, tvm.cpu()), {}

        def run() -> None:
            for name, arguments in calls:
                result = machine[name](*arguments)
                if hold:
                    held[name] = result
                del result

        return vm_bytes(machine, run, _is_idle)

    def apart(self, names: Iterable[str], sizes: Mapping[str, int], default: int = 1) -> int:
        """Return what one pool takes for calls of machines that come and go with their results."""
        seen = Watch(_is_idle, heaps=False)
        for name in names:
            machine = relax.VirtualMachine(self._library, tvm.cpu())
            seen(machine, partial(machine[name], *self.arguments(name, sizes, default)))
            del machine
        return seen.nbytes


def _is_idle(name: str) -> bool:
    return "kv_cache" in name or name.startswith("test.gmem")


def allocations_in(func: relax.Function) -> list[tuple[int, list[Any]]]:
    """Return the bytes of an element and the extents of all that a planned function allocates."""
    found: list[tuple[int, list[Any]]] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.Call) and expr.op in (_ALLOC_STORAGE, _ALLOC_TENSOR):
            is_tensor = expr.op == _ALLOC_TENSOR
            width = element_bytes(DataType(expr.args[1].value)) if is_tensor else 1
            found.append((width, list(expr.args[0].values)))

    relax.analysis.post_order_visit(func, visit)
    return found


def allocated_at(
    func: relax.Function, sizes: Mapping[str, int], page: int = 1, default: int | None = None
) -> int:
    """Return the bytes that a call of a function allocates, where its dimensions have values.

    The function is one without branches, after its memory was planned; `sizes` has the value of
    each symbolic dimension, by name. Each allocation is rounded up to pages of so many bytes.
    """
    return sum(
        -(-width * prod(value_of(extent, sizes, default) for extent in extents) // page) * page
        for width, extents in allocations_in(func)
    )


def functions_of(mod: tvm.IRModule) -> dict[str, relax.Function]:
    """Return the Relax functions of a module, sorted by name."""
    named = {str(v.name_hint): mod[v] for v in mod.get_global_vars()}
    return {n: f for n, f in sorted(named.items()) if isinstance(f, relax.Function)}
