# SPDX-License-Identifier: Apache-2.0
"""What a notebook shows of plans, problems, maps and reports: HTML that no name can break."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest
import tvm
from chain import CHAIN

import tvm_ext
from tvm_ext import Buffer, Problem

HOSTILE = '</td></table><script>alert("1")</script>&amp;'


class Seen(HTMLParser):
    """The rows of a text's tables, what else it says, and the pages in its frames."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.said: list[str] = []
        self.frames: list[dict[str, str | None]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], "every element ends"

    def handle_starttag(self, tag, attrs):
        assert tag in ("div", "p", "table", "tr", "th", "td", "iframe"), tag
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")
        elif tag == "iframe":
            self.frames.append(dict(attrs))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data
        else:
            self.said.append(data)


def shown(value: object) -> Seen:
    assert value._repr_html_() == value._repr_html_()
    return Seen(value._repr_html_())


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(
        (Buffer(HOSTILE, 4096, ((0, 3),), slots=2), Buffer("other", 64, ((2, 5),))),
        tvm_ext.MemoryScope("local.UB", 65536, 32),
        name=HOSTILE,
    )


def test_a_problem_and_a_plan_are_tables(problem):
    plan = tvm_ext.solve(problem)
    _, row, other = shown(problem).rows
    assert row == [HOSTILE, "4,096", "2", "32", "[0, 3)"]
    assert other[0] == "other"
    assert shown(plan).rows[1] == [HOSTILE, ", ".join(f"{at:,}" for at in plan.offsets[HOSTILE])]
    for value in (problem, plan):
        assert "\n" not in str(value)
        assert len(str(value)) < 160
    assert f"{plan.peak:,} bytes" in str(plan)


def test_a_map_is_a_table_and_its_page_in_a_frame(problem):
    report = tvm_ext.memory_map(problem)
    seen = shown(report)
    (frame,) = seen.frames
    assert frame["srcdoc"] == report.page()
    assert frame["sandbox"] == "allow-scripts allow-downloads"
    assert f"{report.memories[0].plans[0].plan.peak:,}" in {row[1] for row in seen.rows}


def test_comparisons_are_tables(problem):
    mod = tvm.IRModule({"main": tvm.script.from_source(CHAIN)})
    compared = tvm_ext.compare(mod, ["best", "bump"], target="llvm")
    assert {"stock", "best", "bump"} <= {row[0] for row in shown(compared).rows}
    each = tvm_ext.compare(mod, view="rewrite", target="llvm")
    assert shown(each).rows[1][:2] == ["main", "global"]
    (view,) = compared.memories
    hostile = replace(compared, memories=(replace(view, owner=HOSTILE, holds=HOSTILE),))
    hostile = replace(hostile, title=HOSTILE, notes=(HOSTILE,))
    assert [HOSTILE] in shown(hostile).rows
    assert HOSTILE in shown(replace(hostile, memories=())).said
