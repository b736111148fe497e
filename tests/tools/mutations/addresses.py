# SPDX-License-Identifier: Apache-2.0
"""Rules of PlanAddresses: who may share bytes, and how a plan is written."""

from __future__ import annotations

from mutants import Fault, Rule

_TIR = "passes/prim_func/"
_ADDRESSES = "tests/addresses/test_"
_RANDOM = "tests/addresses/random_programs/test_"
_PROPERTIES = f"{_RANDOM}address_properties.py"
_IN_PLACE = (
    f"{_ADDRESSES}in_place_rules.py",
    f"{_RANDOM}in_place_statements.py",
    _PROPERTIES,
)
_CARRIED = (f"{_ADDRESSES}carried_values.py", "tests/shared_memory/test_carried_tiles.py")
_INDICES = (f"{_ADDRESSES}index_types.py",)
_THREADED = (f"{_RANDOM}threaded_programs.py",)
_COPYING = (f"{_RANDOM}copying_programs.py",)
_CALLING = (f"{_RANDOM}calling_programs.py",)

ENTRIES: tuple[Rule | Fault, ...] = (
    Rule("in place: each access comes before the store to its place", f"{_TIR}in_place_pairs.py",
         ("may_be_in_place",), _IN_PLACE),
    Rule("in place: what else may reach the memory", f"{_TIR}in_place_pairs.py",
         ("_is_used_at_any_time", "_place"), _IN_PLACE),
    Rule("in place: indices in different rounds of a loop", f"{_TIR}element_order.py",
         ("comes_first", "_in_other_branches", "_is_shown", "_span", "_moves_by_window"),
         (*_IN_PLACE, *_INDICES)),
    Rule("in place: rounds gone through", "passes/ir/element_rounds.py",
         ("comes_first_in_rounds", "_go_through", "_holds"), (*_IN_PLACE, *_CARRIED)),
    Fault("in place fault: the bounds of a loop are read once", "passes/ir/element_accesses.py",
          "yield ElementAccess(access, last, around, True, in_counters)", "pass",
          (*_IN_PLACE, *_INDICES)),
    Fault("live ranges fault: a life ends where it begins", f"{_TIR}problems.py",
          "min(begin, first), max(end, position + 1)", "min(begin, first), end", (_PROPERTIES,)),
    Rule("loops: what a round writes itself", "passes/ir/carried_values.py",
         ("_Round.is_apart", "_Round._end_of", "_Round._wrote", "_is_whole_store", "_is_same",
          "_takes_place", "_are_shown", "_Written.holds", "_Written._certain", "_deciding"),
         _CARRIED),
    Rule("races: threads that share memory", f"{_TIR}thread_races.py",
         ("racing_pairs", "races_with_any", "is_shared"),
         (*_THREADED, "tests/known_faults")),
    Fault("races fault: a tag hides who shares a scope", "target_hw/storage_scope.py",
          "return self.rank in _SHARED_BY_THREADS",
          "return self.rank in _SHARED_BY_THREADS and self.tag in _OWN_TAGS", _THREADED),
    Fault("races fault: an Ascend core forgets separations",
          "passes/ascend/analysis/kernel_problems.py",
          "separated = {frozenset(pair): pair for pair in attached.problem.separations}",
          "separated = {}", _THREADED),
    Rule("calls: what goes on behind a call", f"{_TIR}module_calls.py",
         ("goes_on",), (*_COPYING, *_CALLING)),
    Fault("calls fault: attributes of copies are plain", "passes/ir/access_walk.py",
          "name in ASYNCHRONOUS_SCOPES or", "", _COPYING),
    Rule("calls: which operators are done when they return", "passes/ir/operators.py",
         ("is_synchronous", "is_done_on_return"), (*_COPYING, "tests/ir/test_operator_effects.py")),
    Rule("calls: what callers hold", f"{_TIR}module_calls.py", ("find_calls", "call_sites"),
         (*_CALLING, *_INDICES)),
    Fault("calls fault: functions are planned by themselves", "passes/driver.py",
          "callers = _callers_of(name, graph, planned, functions)", "pass", _CALLING),
    Rule("indices: what may wrap", "passes/ir/symbolic_bounds.py",
         ("does_not_wrap", "never_wraps"),
         (*_INDICES, *_IN_PLACE, "tests/ir/test_symbolic_bounds.py")),
    Fault("arena fault: what pointers with names reach is in it", f"{_TIR}arena.py",
          "return frozenset(found)", "return frozenset()",
          (f"{_RANDOM}aliased_programs.py",)),
    Fault("arena fault: what threads share is in it", f"{_TIR}problems.py",
          "elif is_shared(uses):", "elif False:", _INDICES),
    Fault("arena fault: narrow indices are moved", "passes/ir/accesses.py",
          "return all(does_not_wrap(index.ty.dtype) for index in indices)",
          "return True", _INDICES),
    Fault("arena fault: a pointer is one into the arena, and not into its buffer",
          "passes/storage_rewrite/merge.py",
          "entry = None if self._sound else self._entry(op.args[0])",
          "entry = self._entry(op.args[0])", ("tests/matrix",)),
    Fault("arena fault: an arena begins where its buffers ask for more", "passes/driver.py",
          "max(buffer.alignment & -buffer.alignment for buffer in problem.buffers)", "1",
          (f"{_ADDRESSES}address_options.py",)),
    Rule("types: how wide elements are stored", "passes/ir/stored_types.py", ("stored_bits",),
         (f"{_ADDRESSES}stored_types.py",)),
)  # fmt: skip
