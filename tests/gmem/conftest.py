# SPDX-License-Identifier: Apache-2.0
"""Tests and benchmarks run the same networks, and measure them alike."""
