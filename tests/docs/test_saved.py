"""The table of what planning saves, in the README: some of its rows, measured again."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def saved():
    """Import the benchmark that writes the table."""
    spec = importlib.util.spec_from_file_location("saved", ROOT / "benchmarks" / "saved.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["saved"] = module  # its dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["saved"]


@pytest.mark.parametrize("name", ["bert_layer", "depthwise", "gpt2_sequence", "translation"])
def test_a_row_is_what_is_measured(saved, name):
    network = saved.networks()[name]
    row = saved.row(name, [saved.measured(network, fuse) for fuse in (True, False)])
    assert row in PAGE.splitlines()


def test_every_network_is_in_the_table_or_below_it(saved):
    table = PAGE.partition(saved.BEGIN)[2].partition(saved.END)[0]
    rows = set(re.findall(r"^\| (\w+) \|", table, re.M)) - {"network"}
    below = set(re.findall(r"run time only: (.*)\.$", table, re.M)[0].split(", "))
    assert rows | below == set(saved.networks())
    assert not rows & below


def test_the_table_is_replaced_and_nothing_else(saved):
    page = f"above\n{saved.BEGIN}\nold\n{saved.END}\nbelow\n"
    assert saved.with_table(page, ["new"]) == f"above\n{saved.BEGIN}\n\nnew\n\n{saved.END}\nbelow\n"
    with pytest.raises(ValueError, match="the page has no"):
        saved.with_table("no table", ["new"])
