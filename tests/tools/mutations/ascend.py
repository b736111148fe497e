# SPDX-License-Identifier: Apache-2.0
"""Rules of Ascend kernels: what one instruction writes over, what runs where, and what waits."""

from __future__ import annotations

from mutants import Fault, Rule

_ANALYSIS = "passes/ascend/analysis"
_IN_PLACE = "tests/ascend/test_isa_in_place.py"
_PIPES = ("tests/ascend/test_pipes.py", "tests/ascend/test_computations.py")
_KERNELS = "tests/ascend/test_ascend_plan_memory.py"
_SIMULATION = "tests/simulation/test_simulate.py"

ENTRIES: tuple[Rule | Fault, ...] = (
    Rule("Ascend in place: what an instruction may write over", f"{_ANALYSIS}/instructions.py",
         ("may_write_over", "_operands", "_shape"), (_IN_PLACE, "tests/ascend/test_casts.py")),
    Rule("Ascend in place: which pairs", f"{_ANALYSIS}/kernel_problems.py", ("_isa_in_place",),
         (_IN_PLACE, "tests/ascend/test_casts.py")),
    Rule("Ascend first writes", f"{_ANALYSIS}/first_reads.py",
         ("is_read_first", "_loops", "_names"),
         ("tests/ascend/test_first_writes.py", *_PIPES)),
    Rule("Ascend preloads", f"{_ANALYSIS}/kernel_problems.py",
         ("_preloaded_lives",), (_KERNELS,)),
    Rule("Ascend problems: what is separated and what is refused",
         f"{_ANALYSIS}/kernel_problems.py",
         ("_check_allocations", "check_is_planned", "_problem"),
         (_IN_PLACE, _KERNELS, "tests/ascend/test_ascend_refusals.py")),
    Rule("Ascend computations: which unit runs what",
         f"{_ANALYSIS}/instructions.py",
         ("route", "needs_scalar_loop", "_has_no_instruction"), _PIPES),
    Rule("Ascend computations: what joins", f"{_ANALYSIS}/computations.py",
         ("Computation.then", "joined", "_predicated", "flattened", "_either"),
         (*_PIPES, "tests/ascend/test_first_writes.py")),
    Rule("Ascend computations: what is found", f"{_ANALYSIS}/computation_finder.py",
         ("_Finder._memory", "_Finder._touched", "_Finder._statement", "_elements"),
         _PIPES),
    Rule("Ascend races: what waits for what", "passes/simulation/simulate.py", (), (_SIMULATION,)),
    Rule("Ascend races: who shares bytes", "passes/simulation/program.py",
         ("Resolved.__init__", "Resolved._instruction", "Resolved._loop", "Resolved._groups"),
         (_SIMULATION,)),
)  # fmt: skip
