# SPDX-License-Identifier: Apache-2.0
"""Which functions of the corpus the tests of addresses see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import corpus as functions

SAMPLE = (
    "aliases",
    "branches",
    "butterfly",
    "chain_cached",
    "chain_mixed_types",
    "chain_vectorized",
    "densely_connected",
    "loops",
    "opaque_calls",
    "pool_gradient",
    "separable",
    "softmax_variants",
    "software_pipeline",
    "sort",
)
"""The workloads of default runs: one of each kind, quick to lower."""


@pytest.fixture(scope="session")
def corpus(pytestconfig: pytest.Config) -> list[functions.Entry]:
    """Every function of the workloads in sweeps, and of some by default."""
    import corpus as functions

    if pytestconfig.option.markexpr == "slow":
        return functions.entries()
    return functions.entries(SAMPLE, every_target=False)
