# SPDX-License-Identifier: Apache-2.0
"""The table of what planning saves, in the README: some of its rows, measured again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import saved
from marked_lines import lines_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        "llama_layer",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("gpt2_sequence", "translation")),
    ],
)
def test_a_row_is_what_is_measured(name):
    network = saved.networks()[name]
    plans = [saved.measured(network, fuse) for fuse in (True, False)]
    row = saved.row(name, plans, saved.reordered(network))
    assert row in PAGE.splitlines()


def test_every_network_is_in_the_table_or_below_it():
    table = "\n".join(lines_of(PAGE, saved.NAME))
    rows = set(re.findall(r"^\| (\w+) \|", table, re.M)) - {"network"}
    below = set(re.findall(r"run time only: (.*)\.$", table, re.M)[0].split(", "))
    assert rows | below == set(saved.networks())
    assert not rows & below
