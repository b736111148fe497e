"""What tests share."""

from __future__ import annotations

import pytest

from tvm_ext import workloads


@pytest.fixture(scope="session")
def corpus() -> list[workloads.Entry]:
    """Every function that the workloads lower to, right before storage planning."""
    return workloads.corpus()
