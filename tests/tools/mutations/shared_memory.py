# SPDX-License-Identifier: Apache-2.0
"""Rules of PlanSharedMemory: what an epoch needs, and which barriers end one."""

from __future__ import annotations

from mutants import Fault, Rule

_FEATURE = "passes/shared_memory/"
_EPOCHS = ("tests/shared_memory/test_epochs.py",)
_STEPS = tuple(f"tests/shared_memory/test_kernel_{name}.py" for name in ("steps", "limits"))
_PLACES = ("tests/shared_memory/test_own_elements.py",)
_BYTES = "tests/shared_memory/test_plan_shared_memory.py::test_no_two_threads_meet_in_a_byte"

ENTRIES: tuple[Rule | Fault, ...] = (
    Rule("shared memory: what an epoch needs", f"{_FEATURE}planning/epochs.py",
         ("_Flow.add_all", "_Flow.epochs", "_needed", "_on_the_way"), _EPOCHS),
    Fault("shared memory fault: a loop always runs", f"{_FEATURE}planning/epochs.py",
          "ends = [first, again] if step.may_skip else [again]", "ends = [again]", _EPOCHS),
    Fault("shared memory fault: a group is done one wait too early",
          f"{_FEATURE}planning/epochs.py", "if age <= event.pending}", "if age < event.pending}",
          _EPOCHS),
    Rule("shared memory: what differs between threads", "passes/ir/uniform.py",
         ("Uniformity._is_uniform", "Uniformity.__init__", "Uniformity.loops_alike",
          "Uniformity.is_entered_together", "Uniformity._is_of_one_thread"), _STEPS),
    Rule("shared memory: which barriers all threads meet", f"{_FEATURE}analysis/kernel_memory.py",
         ("_KernelWalk.steps", "_KernelWalk._steps_of_call", "_reason_to_leave"), _STEPS),
    Rule("shared memory: which addresses are kept", f"{_FEATURE}analysis/buffer_uses.py",
         ("is_handed_on", "has_scattered_vectors"), _STEPS),
    Fault("shared memory fault: what was copied does not wait", f"{_FEATURE}planning/epochs.py",
          "masks(Effect.WRITE, Effect.COPY)", "masks(Effect.WRITE)", _EPOCHS),
    Rule("shared memory: what is in place", f"{_FEATURE}planning/epochs.py",
         ("_in_place", "_takes_place", "_may_be_of_two_rounds"), (*_EPOCHS, *_PLACES)),
    Rule("shared memory: whose elements are whose", f"{_FEATURE}analysis/own_elements.py",
         ("OwnElements._are_own", "OwnElements._is_fixed"), _PLACES),
    # What the replay of kernels, thread by thread, notices.
    Fault("shared memory fault: values do not wait", f"{_FEATURE}planning/epochs.py",
          "| written[at] & _union(wanted[other] for other in flow.following[at])", "", (_BYTES,)),
    Fault("shared memory fault: a loop has one round", f"{_FEATURE}planning/epochs.py",
          "begins = list(self.following[first])", "begins = []", (_BYTES,)),
    Fault("shared memory fault: a branch has one arm", f"{_FEATURE}planning/epochs.py",
          "for arm in step.arms for end", "for arm in step.arms[:1] for end", (_BYTES,)),
    Fault("shared memory fault: reads are nothing", f"{_FEATURE}planning/epochs.py",
          "masks(Effect.READ)", "masks()", (_BYTES,)),
    Fault("shared memory fault: writes are nothing", f"{_FEATURE}planning/epochs.py",
          "masks(Effect.WRITE, Effect.COPY)", "masks(Effect.COPY)", (_BYTES,)),
    Fault("shared memory fault: copies are nothing", f"{_FEATURE}planning/epochs.py",
          "self.events.append(event)",
          "self.events.append(event if event.what is not Effect.COPY else _NOTHING)", (_BYTES,)),
    Fault("shared memory fault: copies are done at once", f"{_FEATURE}planning/epochs.py",
          "new.update((flow.index[name], 0) for", "list(0 for", (_BYTES,)),
    Fault("shared memory fault: each wait is for all", f"{_FEATURE}planning/epochs.py",
          "if age <= event.pending}", "if age < 0}", (_BYTES,)),
)  # fmt: skip
