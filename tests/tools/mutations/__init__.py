# SPDX-License-Identifier: Apache-2.0
"""The safety rules that `mutation_run` breaks, and the faults that it plants."""

from __future__ import annotations

from mutants import Fault, Rule

from mutations import addresses, ascend, gmem, layer_group, planning, shared_memory, storage_rewrite

Entry = Rule | Fault

ALL: tuple[Entry, ...] = (
    *addresses.ENTRIES,
    *ascend.ENTRIES,
    *gmem.ENTRIES,
    *layer_group.ENTRIES,
    *planning.ENTRIES,
    *shared_memory.ENTRIES,
    *storage_rewrite.ENTRIES,
)
