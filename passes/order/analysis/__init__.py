# SPDX-License-Identifier: Apache-2.0
"""Analysis of a dataflow block: the moves that are allowed, and the bytes that are kept alive."""
