"""What tests share."""

from __future__ import annotations

from collections.abc import Iterator

import corpus as functions
import pytest
from hypothesis import HealthCheck, settings

from passes.planning import planner, planner_names

# A loaded machine is no fault of what is tested.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def forget_planners() -> Iterator[None]:
    """Forget the planners that a test registers: others ask for all that there are."""
    before = planner_names()
    yield
    for name in planner_names():
        if name not in before:
            del planner._PLANNERS[name]


@pytest.fixture(scope="session")
def corpus() -> list[functions.Entry]:
    """Every function that the workloads lower to, right before storage planning."""
    return functions.entries()
