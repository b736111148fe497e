# SPDX-License-Identifier: Apache-2.0
"""Names that tell things apart which their author calls by one name."""

from __future__ import annotations


def unique_name(name: str, taken: set[str], mark: str = ".") -> str:
    """Return `name`, with a number behind `mark` where it is among `taken`, and take it."""
    chosen, count = name, 0
    while chosen in taken:
        count += 1
        chosen = f"{name}{mark}{count}"
    taken.add(chosen)
    return chosen
