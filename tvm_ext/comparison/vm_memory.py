# SPDX-License-Identifier: Apache-2.0
"""What the Relax virtual machine's allocator asks the device for while a program runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax

PAGE = 4096
"""Bytes that TVM's pooled allocator rounds each allocation up to."""


def vm_bytes(machine: relax.VirtualMachine, run: Callable[[], object]) -> int:
    """Return the bytes that the machine's pooled allocator takes from the device during a run.

    The allocator keeps what is freed, and hands it out again for a request of the same rounded
    size; only when it has none does it ask the device. So each storage at an address that was not
    seen before is memory from the device.

    Parameters
    ----------
    machine : tvm.relax.VirtualMachine
        With the pooled allocator, which is TVM's default.
    run : callable
        Calls functions of the machine, as often as is to be measured.
    """
    tensor_at = tvm.get_global_func("vm.builtin.alloc_tensor")
    taken: dict[int, int] = {}

    def note(_func: Any, name: str, before: bool, result: Any, *arguments: Any) -> None:
        if name == "vm.builtin.alloc_storage" and not before:
            (count,) = arguments[1]
            one = tensor_at(result, 0, tvm.runtime.ShapeTuple([0]), tvm.DataType("uint8"))
            taken[one.data_ptr()] = -(-int(count) // PAGE) * PAGE

    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    machine.set_instrument(note)
    try:
        run()
    finally:
        machine.set_instrument(lambda *_: None)
    return sum(taken.values())
