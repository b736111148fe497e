# SPDX-License-Identifier: Apache-2.0
"""What is to be planned in a function, and what is known beside the function itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from passes.planning import ADDRESS_LIMIT, join_ranges
from passes.prim_func.module_calls import Callers
from target_hw.memory import MemoryHierarchy, MemoryScope

DEFAULT_ALIGNMENT = 64
"""Default alignment in bytes, for a memory that no target describes.

TVM's run time gives every allocation this alignment (``kAllocAlignment``), and extern code may
count on it.
"""


@dataclass(frozen=True)
class ProblemOptions:
    """What is to be planned, and how."""

    # Plan the allocations in these scopes, and all of them. By default every scope, or with
    # `memory` every scope that it describes; but then what a code generator keeps in registers
    # stays as it is, as in `StorageRewrite`: untagged allocations of at most 4 bytes, and all in
    # untagged scopes of ``warp`` rank or nearer to the core, unless `memory` describes them.
    scopes: tuple[str, ...] | None = None
    # Capacities, alignments and reserved ranges. A scope that it does not describe has no capacity,
    # and an alignment of `DEFAULT_ALIGNMENT`.
    memory: MemoryHierarchy | None = None
    # The most that variables of a symbolic size can be, by name. Those in the function's attribute
    # ``tir_var_upper_bound`` hold as well.
    upper_bounds: tuple[tuple[str, int], ...] = ()
    # Whether a result may take the place of an operand that dies in the same statement.
    detect_inplace: bool = True
    # Whether offsets become addresses in the one memory of the chip, rather than places in an
    # allocation that the program makes. Then volatile and bit-packed memory is planned too, but
    # ``global`` memory of a parallel loop or thread is not: it has as many addresses as there are
    # iterations. Elements are as wide as TVM stores them, which may be wider than declared; an
    # arena's views keep their types.
    addressed: bool = True
    # Whether the chip has arithmetic for every type in the function, so that all are stored as
    # declared. Functions bound to an ``ext_dev``, which TVM does not build, are taken so too.
    is_native: bool = False
    # What is known of the functions that call this one.
    callers: Callers = field(default_factory=Callers)
    # Whether buffers with unequal numbers of slots may be in place of one another, if one loop's
    # iterations take turns with both: for planners that give one of them more offsets.
    unequal_slots: bool = False
    # Capacities that the function's target says of its own, which leave open what there is besides.
    limits: MemoryHierarchy = field(default_factory=MemoryHierarchy)

    def __post_init__(self) -> None:
        for scope in self.scopes or ():
            MemoryScope(scope)  # Names what is wrong with it.
            if self.memory is not None and scope not in self.memory:
                known = ", ".join(described.name for described in self.memory) or "none"
                raise ValueError(f"scope {scope!r} is not in the target's memory; it has: {known}")

    def memory_of(self, scope: str) -> MemoryScope:
        """Return what is known of a scope's memory, without what callers hold in it."""
        capacity = self.limits[scope].capacity if scope in self.limits else None
        memory = MemoryScope(scope, capacity, DEFAULT_ALIGNMENT)
        if self.memory is not None and scope in self.memory:
            memory = self.memory[scope]
        # A caller's memory may be described otherwise, or not at all.
        end_of_memory = ADDRESS_LIMIT if memory.capacity is None else memory.capacity
        taken = [
            (max(begin - memory.base, 0), min(end - memory.base, end_of_memory))
            for begin, end in self.callers.taken.get(scope, ())
            if memory.base < end and begin - memory.base < end_of_memory
        ]
        return replace(memory, reserved=join_ranges((*memory.reserved, *taken)))
