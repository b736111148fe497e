# SPDX-License-Identifier: Apache-2.0
"""Rules of the mirrored StorageRewrite: the stock pass notices each one that is missing."""

from __future__ import annotations

from mutants import Fault, Rule

_ANALYSIS = "passes/storage_rewrite/analysis"
_PLANNING = "passes/storage_rewrite/planning"
_CASES = "tests/storage_rewrite/test_storage_rewrite_cases.py"
_REFUSALS = "tests/storage_rewrite/test_storage_rewrite_refusals.py"
_SOUND = "tests/storage_rewrite/test_storage_rewrite_sound.py"
_CORPUS = "tests/storage_rewrite/test_storage_rewrite_corpus.py"
_CALLING = "tests/addresses/random_programs/test_calling_programs.py"
_SAME = "tests/storage_rewrite/test_storage_rewrite_property.py::test_equals_stock"

ENTRIES: tuple[Rule | Fault, ...] = (
    Rule("StorageRewrite in place", f"{_ANALYSIS}/inplace.py", (), (_CASES, _SAME, _CORPUS)),
    Rule("StorageRewrite live ranges and aliases", "passes/ir/linear_access.py", (),
         (_CASES, _REFUSALS, _SOUND, _CORPUS, _SAME, _CALLING)),
    Rule("StorageRewrite vector types", f"{_ANALYSIS}/vector_access.py", (),
         (_CASES, _REFUSALS, _SOUND, _CORPUS, _SAME)),
    Rule("StorageRewrite sharing", f"{_PLANNING}/plan_memory.py", (),
         (_CASES, _SOUND, _REFUSALS, _SAME)),
    Rule("StorageRewrite as a planner", f"{_PLANNING}/sharing.py", (),
         ("tests/planning/engine/test_coalesce.py", "tests/planning/test_claims.py")),
)  # fmt: skip
