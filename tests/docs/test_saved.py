# SPDX-License-Identifier: Apache-2.0
"""The README's table of what planning saves, measured again in part, and how lines are replaced."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest
import saved
from marked_lines import lines_of, with_lines
from sweeps import sample

from tvm_ext import workloads

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sample(("squeezenet", "llama", "clip"), "squeezenet"))
def test_a_row_is_what_is_measured(name):
    assert saved.line(name, saved.measured(name)) in PAGE.splitlines()


def test_every_network_is_in_the_table():
    table = "\n".join(lines_of(PAGE, saved.NAME))
    rows = re.findall(r"^\| (\w+) \|", table, re.M)
    assert rows == ["network", *workloads.NETWORKS]


def test_the_page_says_the_median_of_its_table():
    (said,) = re.findall(r"Saved: at offsets .*?, ([\d.]+)% in the median", PAGE)
    shares = [float(cells[4].rstrip("%")) for cells in rows_of_table()]
    assert float(said) == pytest.approx(statistics.median(shares), abs=0.1)


def rows_of_table():
    lines = [line for line in lines_of(PAGE, saved.NAME) if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines[1:]]


MARKED = "above\n<!-- a: begin -->\nold\n<!-- a: end -->\nbelow\n<!-- b: begin --><!-- b: end -->\n"


def test_the_lines_are_replaced_and_nothing_else():
    page = with_lines(MARKED, "a", ["new", "", "lines"])
    assert page == MARKED.replace("\nold\n", "\n\nnew\n\nlines\n\n")
    assert lines_of(page, "a") == ["new", "", "lines"]
    assert lines_of(page, "b") == []
    assert with_lines(page, "a", lines_of(page, "a")) == page


@pytest.mark.parametrize(
    "page",
    ["no table", "<!-- a: begin -->", "<!-- a: end --><!-- a: begin -->", MARKED + MARKED],
)
def test_a_page_without_both_comments_is_refused(page):
    with pytest.raises(ValueError, match="the page must have <!-- a: begin --> once"):
        with_lines(page, "a", [])
