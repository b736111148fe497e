# SPDX-License-Identifier: Apache-2.0
"""The graph that a TIR function holds."""
