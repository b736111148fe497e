# SPDX-License-Identifier: Apache-2.0
"""Lines between two comments of a page."""

from __future__ import annotations

import pytest
from marked_lines import lines_of, with_lines

PAGE = "above\n<!-- a: begin -->\nold\n<!-- a: end -->\nbelow\n<!-- b: begin --><!-- b: end -->\n"


def test_the_lines_are_replaced_and_nothing_else():
    page = with_lines(PAGE, "a", ["new", "", "lines"])
    assert page == PAGE.replace("\nold\n", "\n\nnew\n\nlines\n\n")
    assert lines_of(page, "a") == ["new", "", "lines"]
    assert lines_of(page, "b") == []
    assert with_lines(page, "a", lines_of(page, "a")) == page


@pytest.mark.parametrize(
    "page",
    [
        "no table",
        "<!-- a: begin -->",
        "<!-- a: end --><!-- a: begin -->",
        PAGE + PAGE,
    ],
)
def test_a_page_without_both_comments_is_refused(page):
    with pytest.raises(ValueError, match="the page must have <!-- a: begin --> once"):
        with_lines(page, "a", [])
