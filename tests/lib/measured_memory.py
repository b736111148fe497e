# SPDX-License-Identifier: Apache-2.0
"""What a Relax function allocates at given sizes, and what the virtual machine takes for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import DataType, relax
from tvm.ir import Op
from tvm.sym import Analyzer
from tvm.tirx import IntImm
from tvm.tirx.analysis import undefined_vars

from passes.relax.sizes import element_bytes

PAGE = 4096
"""Bytes that TVM's pooled allocator rounds each allocation up to."""

_ALLOC_STORAGE = Op.get("relax.memory.alloc_storage")
_ALLOC_TENSOR = Op.get("relax.builtin.alloc_tensor")


def vm_bytes(
    machine: relax.VirtualMachine,
    run: Callable[[], object],
    skips: Callable[[str], bool] = lambda _name: False,
) -> int:
    """Return the bytes that the machine's pooled allocator takes from the device during a run.

    The allocator keeps what is freed, and hands it out again for a request of the same rounded
    size; only when it has none does it ask the device. So each storage at an address that was not
    seen before is memory from the device.

    The machine has the pooled allocator, which is TVM's default; `run` calls its functions, as
    often as is to be measured. What is called by a name that `skips` is true of does not run.
    """
    tensor_at = tvm.get_global_func("vm.builtin.alloc_tensor")
    taken: dict[int, int] = {}

    def note(_func: Any, name: str, before: bool, result: Any, *arguments: Any) -> Any:
        if before and skips(name):
            return relax.VMInstrumentReturnKind.SKIP_RUN
        if name == "vm.builtin.alloc_storage" and not before:
            (count,) = arguments[1]
            one = tensor_at(result, 0, tvm.runtime.ShapeTuple([0]), tvm.DataType("uint8"))
            taken[one.data_ptr()] = -(-int(count) // PAGE) * PAGE
        return None

    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    machine.set_instrument(note)
    try:
        run()
    finally:
        machine.set_instrument(lambda *_: None)
    return sum(taken.values())


def allocated_at(func: relax.Function, sizes: Mapping[str, int], page: int = 1) -> int:
    """Return the bytes that a call of a function allocates, where its dimensions have values.

    The function is one without branches, after its memory was planned; `sizes` has the value of
    each symbolic dimension, by name. Each allocation is rounded up to pages of so many bytes.
    """
    analyzer = Analyzer()
    total, bound = 0, set()
    for block in func.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call) and value.op in (_ALLOC_STORAGE, _ALLOC_TENSOR):
                width = 1
                if value.op == _ALLOC_TENSOR:
                    width = element_bytes(DataType(value.args[1].value))
                for extent in value.args[0].values:
                    for variable in undefined_vars(extent):
                        if variable.__chandle__() not in bound:
                            bound.add(variable.__chandle__())
                            analyzer.bind(variable, IntImm("int64", sizes[str(variable.name)]))
                    width *= int(analyzer.simplify(extent))
                total += -(-width // page) * page
    return total
