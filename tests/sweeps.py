# SPDX-License-Identifier: Apache-2.0
"""Properties that hold for a few examples in each default run, and for many with ``-m slow``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy


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
