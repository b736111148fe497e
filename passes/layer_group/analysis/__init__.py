# SPDX-License-Identifier: Apache-2.0
"""Analysis of kernels: the slice of each input that a slice of the output needs."""
