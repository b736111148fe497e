# SPDX-License-Identifier: Apache-2.0
"""What a planned Relax function allocates, counted on its IR."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tvm import DataType, relax

from passes.ir.operators import operator_name
from passes.ir.relax_operators import ALLOC_PLANNED_STORAGE, ALLOC_TENSOR
from passes.relax import Sizes, product
from tvm_ext.report.readers.tensor_memories import unit_text


@dataclass(frozen=True)
class AllocatedMemory:
    """The memory that a call of a Relax function allocates."""

    nbytes: int = 0
    """Bytes of the storages of constant size."""
    left: int = 0
    """Tensors outside of storages: the runtime allocates each by itself."""
    left_bytes: int = 0
    """Bytes of the tensors outside of storages whose size is constant."""
    units: tuple[tuple[str, int], ...] = ()
    """Storages of symbolic size: a product of symbolic dimensions, and the bytes for each of it."""


def allocated_memory(func: relax.Function) -> AllocatedMemory:
    """Return the memory that a call of a planned function allocates, and holds to its end.

    Of two branches, the larger counts. Allocations must not yet be calls of the runtime.
    """
    sizes = Sizes(func, {})

    def count(value: relax.Expr) -> Counter[tuple[str, str]]:
        """Return the numbers of `AllocatedMemory`, by field and unit."""
        if isinstance(value, relax.SeqExpr):
            bindings = (binding for block in value.blocks for binding in block.bindings)
            return sum((count(binding.value) for binding in bindings), Counter())
        if isinstance(value, relax.If):
            return count(value.true_branch) | count(value.false_branch)
        operator = operator_name(value.op) if isinstance(value, relax.Call) else None
        if operator not in (ALLOC_PLANNED_STORAGE, ALLOC_TENSOR):
            return Counter()
        is_storage = operator == ALLOC_PLANNED_STORAGE
        dtype = DataType("uint8" if is_storage else value.args[1].value)
        size = sizes.of(value.args[0].values, dtype)
        if not is_storage:
            return Counter({("left", ""): 1, ("left_bytes", ""): 0 if size.factors else size.count})
        unit = unit_text(product(size.factors) if size.factors else None)
        return Counter({("units" if size.factors else "nbytes", unit): size.count})

    counts = count(func.body)
    units = sorted((unit, nbytes) for (_, unit), nbytes in counts.items() if unit)
    fields = {name: number for (name, unit), number in counts.items() if not unit}
    return AllocatedMemory(**fields, units=tuple(units))
