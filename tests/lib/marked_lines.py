# SPDX-License-Identifier: Apache-2.0
"""Lines of a page that a script writes, between two comments that name them."""

from __future__ import annotations

from collections.abc import Iterable


def with_lines(page: str, name: str, lines: Iterable[str]) -> str:
    """Return a page with other lines between the comments ``name: begin`` and ``name: end``.

    Raises
    ------
    ValueError
        If the page does not have both, once each and in this order.
    """
    before, after = _around(page, name)
    return before + "\n\n" + "\n".join(lines) + "\n\n" + after


def lines_of(page: str, name: str) -> list[str]:
    """Return the lines of a page that stand between the comments called `name`."""
    before, after = _around(page, name)
    return page[len(before) : len(page) - len(after)].strip().splitlines()


def _around(page: str, name: str) -> tuple[str, str]:
    """Return what stands before the lines and after them, the comments included."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(end) < page.index(begin):
        raise ValueError(f"the page must have {begin} once, and {end} once after it")
    return page[: page.index(begin) + len(begin)], page[page.index(end) :]
