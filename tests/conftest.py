"""What tests share."""

from __future__ import annotations

import corpus as functions
import pytest


@pytest.fixture(scope="session")
def corpus() -> list[functions.Entry]:
    """Every function that the workloads lower to, right before storage planning."""
    return functions.entries()
