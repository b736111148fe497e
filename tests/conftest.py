"""What tests share."""

from __future__ import annotations

import corpus as functions
import pytest
from hypothesis import HealthCheck, settings

# A loaded machine is no fault of what is tested.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def corpus() -> list[functions.Entry]:
    """Every function that the workloads lower to, right before storage planning."""
    return functions.entries()
