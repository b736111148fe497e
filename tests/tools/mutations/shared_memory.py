# SPDX-License-Identifier: Apache-2.0
"""Rules of PlanSharedMemory: what an epoch needs, and which barriers end one."""

from __future__ import annotations

from mutants import Fault, Rule

_FEATURE = "passes/shared_memory/"
_EPOCHS = ("tests/shared_memory/test_epochs.py",)
_STEPS = ("tests/shared_memory/test_kernel_steps.py", "tests/shared_memory/test_planted_faults.py")

ENTRIES: tuple[Rule | Fault, ...] = (
    Rule("shared memory: what an epoch needs", f"{_FEATURE}planning/epochs.py",
         ("_Flow.add_all", "_Flow.epochs", "_needed", "_on_the_way"), _EPOCHS),
    Fault("shared memory fault: a loop always runs", f"{_FEATURE}planning/epochs.py",
          "ends = [first, again] if step.may_skip else [again]", "ends = [again]", _EPOCHS),
    Fault("shared memory fault: a group is done one wait too early",
          f"{_FEATURE}planning/epochs.py", "if age <= event.pending}", "if age < event.pending}",
          _EPOCHS),
    Rule("shared memory: what differs between threads", f"{_FEATURE}analysis/uniform.py",
         ("Uniformity._is_uniform", "Uniformity._visit", "Uniformity.loops_alike", "is_thread",
         "_is_of_one_thread"), _STEPS),
    Rule("shared memory: which barriers all threads meet", f"{_FEATURE}analysis/kernel_memory.py",
         ("_Walk.steps", "_Walk._meets", "_Walk._steps_of_call", "_reason_to_leave"), _STEPS),
    Rule("shared memory: which addresses are kept", f"{_FEATURE}analysis/statement_uses.py",
         ("BufferUses._visit_call", "BufferUses._visit_var"), _STEPS),
)  # fmt: skip
