# SPDX-License-Identifier: Apache-2.0
"""What the virtual machine's pool takes from the device, seen from outside while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

PAGE = 4096


@dataclass
class Seen:
    """What was seen of a run: the bytes that the pool took, and which way each branch went."""

    nbytes: int
    decisions: tuple[bool, ...]


def watch(machine: relax.VirtualMachine, run: Callable[[], object]) -> Seen:
    """Return what the pool of a CPU takes while a machine runs.

    The pool gives nothing back, so each address that it hands out for the first time is memory from
    the device. Storages come from it, and so do the heaps that hold symbolic dimensions.
    """
    tensor_at = tvm.get_global_func("vm.builtin.alloc_tensor")
    taken: dict[int, int] = {}
    decisions: list[bool] = []

    def note(_func: Any, name: str, before: bool, result: Any, *arguments: Any) -> None:
        if before:
            return
        if name == "vm.builtin.alloc_storage":
            (count,) = arguments[1]
            one = tensor_at(result, 0, tvm.runtime.ShapeTuple([0]), tvm.DataType("uint8"))
            taken[one.data_ptr()] = -(-int(count) // PAGE) * PAGE
        elif name == "vm.builtin.alloc_shape_heap":
            taken[result.data_ptr()] = -(-8 * int(arguments[1]) // PAGE) * PAGE
        elif name == "vm.builtin.read_if_cond":
            decisions.append(bool(result))

    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    machine.set_instrument(note)
    try:
        run()
    finally:
        machine.set_instrument(lambda *_: None)
    return Seen(sum(taken.values()), tuple(decisions))
