# SPDX-License-Identifier: Apache-2.0
"""The table of rules and faults names what is there, and a mutant differs in one condition."""

from __future__ import annotations

import ast
from pathlib import Path

import mutations
import pytest
from mutants import Rule, mutants_of

PROJECT = Path(__file__).resolve().parents[2]

SOURCE = """\
def may_share(one, other):
    if one is other:
        return False
    return one.size == 4 and all(part.is_free for part in other if part)
"""


def test_each_condition_is_dropped_once(tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text(SOURCE)
    mutants = mutants_of(tmp_path, Rule("sharing", "rule.py", ("may_share",), ()))
    changes = [mutant.change for mutant in mutants]
    assert changes == [
        "never leaves at 'if one is other'",
        "without 'one.size == 4'",
        "without 'all((part.is_free for part in other if part))'",
        "for all, not 'if part'",
    ]
    for mutant in mutants:
        ast.parse(mutant.source)
        assert mutant.source != SOURCE


@pytest.mark.parametrize("one", mutations.ALL, ids=lambda one: one.name)
def test_rules_and_faults_name_what_is_there(one: mutations.Entry) -> None:
    mutants = mutants_of(PROJECT, one)
    assert mutants
    for test in one.tests:
        assert (PROJECT / test.split("::")[0]).exists(), test
