# SPDX-License-Identifier: Apache-2.0
"""A group of layers as one function of its slices."""
