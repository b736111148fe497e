# SPDX-License-Identifier: Apache-2.0
"""Rules of PlanAddresses: who may share bytes, and how a plan is written."""

from __future__ import annotations

from mutants import Fault, Rule

_PROGRAMS = (
    "tests/plan_addresses/test_in_place_statements.py",
    "tests/plan_addresses/test_address_properties.py",
)
_IN_PLACE = "passes/analysis/tir/in_place_pairs.py"

ENTRIES: tuple[Rule | Fault, ...] = (
    Rule(
        "in place: each access comes before the store to its place",
        _IN_PLACE,
        ("InPlacePairs.allows", "_comes_first"),
        _PROGRAMS,
    ),
)
