# SPDX-License-Identifier: Apache-2.0
"""Rules of PlanAddresses: who may share bytes, and how a plan is written."""

from __future__ import annotations

from mutants import Fault, Rule

_TIR = "passes/prim_func/"
_IN_PLACE = (
    "tests/addresses/test_in_place_statements.py",
    "tests/addresses/test_address_properties.py",
)
_INDICES = ("tests/addresses/test_index_types.py",)

ENTRIES: tuple[Rule | Fault, ...] = (
    Rule(
        "in place: each access comes before the store to its place",
        f"{_TIR}in_place_pairs.py",
        ("InPlacePairs.allows", "_comes_first"),
        _IN_PLACE,
    ),
    Rule(
        "in place: what else may reach the memory",
        f"{_TIR}in_place_pairs.py",
        ("InPlacePairs._sees_all", "InPlacePairs._have_plain_uses"),
        (*_IN_PLACE, "tests/addresses/test_in_place_rules.py"),
    ),
    Rule(
        "in place: indices in different rounds of a loop",
        f"{_TIR}loop_indices.py",
        ("LoopNest.never_meet", "LoopNest.is_ascending", "LoopNest._as_sum", "names_only"),
        _IN_PLACE,
    ),
    Fault(
        "in place fault: the bounds of a loop are read once",
        f"{_TIR}in_place_pairs.py",
        "inside = [(body, 0, is_repeated), *((bound, 0, True) for bound in bounds)]",
        "inside = [(body, 0, is_repeated)]",
        (*_IN_PLACE, "tests/addresses/test_index_types.py"),
    ),
    Rule(
        "races: threads that share memory",
        f"{_TIR}thread_races.py",
        ("racing_pairs", "races_with_any", "_is_synchronized"),
        ("tests/addresses/test_threaded_programs.py", "tests/known_faults"),
    ),
    Rule(
        "calls: what goes on behind a call",
        f"{_TIR}module_calls.py",
        ("is_done_on_return", "goes_on"),
        ("tests/addresses/test_copying_programs.py",),
    ),
    Rule(
        "calls: which operators are done when they return",
        "passes/ir/operators.py",
        ("is_synchronous",),
        ("tests/addresses/test_copying_programs.py",),
    ),
    Rule(
        "calls: what callers hold",
        f"{_TIR}module_calls.py",
        ("find_calls", "call_sites"),
        ("tests/addresses/test_calling_programs.py",),
    ),
    Rule(
        "indices: what may wrap",
        "passes/ir/symbolic_bounds.py",
        ("does_not_wrap", "never_wraps"),
        (*_INDICES, "tests/addresses/test_in_place_statements.py"),
    ),
    Fault(
        "arena fault: TVM sees one byte of an arena of addresses",
        "passes/prim_func/arena.py",
        'tvm_access_ptr(\n            "uint8", arena.data, index, extent, _READ_AND_WRITE\n'
        "        )",
        "address_of(tirx.BufferLoad(arena, [index]))",
        _INDICES,
    ),
    Fault(
        "arena fault: narrow indices are moved",
        f"{_TIR}memory_uses.py",
        "return all(does_not_wrap(dtype) for dtype in self.indexed)",
        "return True",
        _INDICES,
    ),
    Fault(
        "arena fault: a pointer is one into the arena, and not into its buffer",
        "passes/storage_rewrite/merge.py",
        "entry = None if self._sound else self._entry(op.args[0])",
        "entry = self._entry(op.args[0])",
        ("tests/addresses/test_arena_pointers.py",),
    ),
    Fault(
        "arena fault: an arena begins where its buffers ask for more",
        "passes/driver.py",
        "max(buffer.alignment & -buffer.alignment for buffer in problem.buffers)",
        "1",
        ("tests/addresses/test_address_options.py",),
    ),
    Rule(
        "types: how wide elements are stored",
        "passes/ir/stored_types.py",
        ("stored_bits",),
        ("tests/addresses/test_stored_types.py",),
    ),
)
