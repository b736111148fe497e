# SPDX-License-Identifier: Apache-2.0
"""Importing this lets a benchmark import what it shares with the tests."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(TESTS / "lib"), str(TESTS / "shared_memory"), str(TESTS)]
