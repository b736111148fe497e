# SPDX-License-Identifier: Apache-2.0
"""Tests of a few cases or examples in each default run, and of many with ``-m slow``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

quick_only = False
"""Whether slow cases are left out, and not only marked: thousands, in every process of a run."""


def sample(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Return the cases of a test, all but the chosen ones marked as slow."""
    if quick_only:
        return [x for x in cases if x in chosen]
    return [x if x in chosen else pytest.param(x, marks=pytest.mark.slow) for x in cases]


def swept(quick: int, sweep: int, *strategies: SearchStrategy) -> Callable:
    """Return a decorator that makes two tests of a property of some drawn values."""

    def decorate(check: Callable[..., None]) -> Callable[[int], None]:
        slow = pytest.param(sweep, marks=pytest.mark.slow, id="sweep")

        @pytest.mark.parametrize("examples", [pytest.param(quick, id="sample"), slow])
        def test(examples: int) -> None:
            settings(max_examples=examples)(given(*strategies)(check))()

        test.__doc__ = check.__doc__
        return test

    return decorate
