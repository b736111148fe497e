# SPDX-License-Identifier: Apache-2.0
"""Rules of GMEMAllocate: which tensors live together, and what the runtime may keep or move."""

from __future__ import annotations

from mutants import Fault, Rule

_RELAX = "passes/relax/"
_GMEM = "passes/gmem/"
_TESTS = "tests/gmem/test_"
_DEVICES = "tests/gmem/devices/test_"
_PROGRAMS = "tests/gmem/programs/test_"
_BY_HAND = f"{_TESTS}gmem_allocate.py"
_FAULTS = f"{_PROGRAMS}known_faults.py"
_FORMS = f"{_DEVICES}device_forms.py"
_BRANCHES = f"{_PROGRAMS}gmem_branches.py"
_RANDOM = (f"{_PROGRAMS}relax_properties.py",)
_GRAPHS = (f"{_DEVICES}cuda_graph.py",)
_POOL = ("tests/gmem/pool",)
_PIECES = "tests/gmem/planning/test_pieces.py"
_SIZES = (_BY_HAND, _FAULTS, f"{_PROGRAMS}well_formed.py", *_POOL)
_KERNELS = (f"{_DEVICES}kernel_offsets.py",)
_MEMORIES = (f"{_DEVICES}several_memories.py",)
_REGIONS = (f"{_TESTS}gmem_refusals.py", f"{_TESTS}gmem_regions.py")
_CALLING = "tests/addresses/random_programs/test_calling_programs.py"
_PRIM_FUNCS = (f"{_TESTS}gmem_prim_func.py", _CALLING)

ENTRIES: tuple[Rule | Fault, ...] = (
    Rule("tensors: which live together", f"{_RELAX}tensors.py",
         ("live_ranges",), (_BY_HAND, _BRANCHES, *_RANDOM)),
    Fault("tensors fault: an alias has a life of its own", f"{_RELAX}graph.py",
          "return values[0] if values[0].fields is None else TensorValue(values[0].tensors)",
          "return NO_TENSORS", (_BY_HAND, *_RANDOM)),
    Fault("tensors fault: a value is that of the first branch", f"{_RELAX}tensors.py",
          "return TensorValue(_tensors_of((first, second)))", "return first", (_BY_HAND, *_RANDOM)),
    Rule("tensors: what something else may keep", f"{_RELAX}graph.py",
         ("_Reader._call", "_Reader._is_destination_passing", "_Reader._local_function",
          "_Reader._note_inner"),
         (_BY_HAND, _BRANCHES, f"{_PROGRAMS}well_formed.py", *_RANDOM, *_KERNELS)),
    Rule("tensors: which devices and scopes share", f"{_RELAX}tensors.py",
         ("_find_memory", "same_device"),
         (_FAULTS, _FORMS, _BRANCHES)),
    Rule("results: whose memory others may use before", f"{_RELAX}tensors.py",
         ("group_tensors",),
         (_BY_HAND, f"{_TESTS}gmem_regions.py", *_GRAPHS, f"{_PROGRAMS}well_formed.py", _FORMS,
          _BRANCHES)),
    Rule("CUDA graphs: what a region touches", f"{_RELAX}graph.py",
         ("_Reader._launch", "_Reader._is_uncaptured", "_Reader._uncaptured"), _GRAPHS),
    Fault("CUDA graphs fault: nothing waits behind a branch", f"{_RELAX}graph.py",
          "touched[tensor] = None", "pass", _GRAPHS),
    Rule("CUDA graphs: who has none", f"{_GMEM}relax_functions.py", ("_planned_of",),
         (*_GRAPHS, _BY_HAND)),
    Rule("CUDA graphs: what the stock pass leaves", f"{_GMEM}analysis/stock_sharing.py",
         ("kept_as_stock",), _GRAPHS),
    Rule("sizes: which are multiples of one unit", f"{_RELAX}sizes.py",
         ("Sizes._factors", "Sizes._most"), _SIZES),
    Fault("sizes fault: a bound is not checked from below", f"{_GMEM}relax_memory.py",
          '(tir.least(variable, bound.lower), bound.lower, f"below {bound.lower}"),', "",
          (*_GRAPHS, *_SIZES)),
    Rule("storages: the stock pass's sharing, where it is right", f"{_GMEM}planning/pool.py",
         ("in_given_slots",), (_PIECES, *_POOL)),
    Rule("storages: where one is allocated", f"{_GMEM}allocations.py", ("storage_span",),
         (f"{_PROGRAMS}well_formed.py", *_RANDOM, *_POOL)),
    Rule("storages: what the pool takes on each path", f"{_GMEM}planning/pool.py",
         ("skipped_on_paths", "blocks_taken"), (_PIECES, *_POOL)),
    Rule("storages: no more than the stock pass's", f"{_GMEM}chosen_ways.py",
         ("choose_placements", "_serve", "_open_ways", "_after"), (_BY_HAND, *_GRAPHS, *_POOL)),
    Rule("storages: what a call takes", f"{_GMEM}counted_ways.py",
         ("sizes_of_equal_pages", "Taken.is_never_above"), (_BY_HAND, *_GRAPHS, *_POOL)),
    Rule("storages: which tensors have their own", f"{_GMEM}storages.py",
         ("as_stock_shares", "keeping_largest", "with_own_storages"), (*_GRAPHS, *_POOL)),
    Fault("storages fault: no slots where offsets take more", f"{_GMEM}chosen_ways.py",
          "if any(group.unit is not None for group in memory.groups):", "if False:", _POOL),
    Rule("storages: which ways there are", f"{_GMEM}planning/pool.py",
         ("with_returned",), (_PIECES, _FORMS)),
    Rule("kernels: which arguments may be moved", f"{_RELAX}kernel_arguments.py",
         ("kernel_uses", "_movable"), _KERNELS),
    Rule("kernels: which are made for offsets", f"{_GMEM}relax_memory.py",
         ("with_kernel_variants", "_at_offsets"), _KERNELS),
    Rule("regions: where activations may be", f"{_GMEM}planning/gmem_layout.py",
         ("GMEMLayout.__post_init__", "GMEM.memory_behind", "GMEM.place_weights", "region_of"),
         (*_REGIONS, _FORMS)),
    Rule("regions: functions that call each other", f"{_GMEM}relax_functions.py",
         ("plan_gmem", "_callers"), (_BY_HAND, *_REGIONS, _FORMS, *_MEMORIES)),
    Rule("memories: callers wait, and equal weights are one", f"{_GMEM}several_memories.py",
         ("plan_over_memories", "_weights"), _MEMORIES),
    Rule("served: what is not known", f"{_GMEM}serving.py", ("_blocks",),
         ("tests/gmem/pool/test_serving.py", f"{_POOL[0]}/test_taken_from_the_pool.py", *_GRAPHS)),
    Rule("graphs of PrimFuncs: weights, and calls at once", f"{_GMEM}prim_funcs.py",
         ("_only_read", "find_weights", "with_placed_graphs"), _PRIM_FUNCS),
)  # fmt: skip
