# SPDX-License-Identifier: Apache-2.0
"""What tests of compiled loops need."""

import pytest

from passes.planning.engine import compiled
from passes.planning.planners.canonical_loop import advance


@pytest.fixture(scope="session")
def with_compiler():
    if compiled.loop(advance) is None:
        pytest.skip("TVM is not installed, or has no llvm")
