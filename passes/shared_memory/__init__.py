# SPDX-License-Identifier: Apache-2.0
"""Shared memory of GPU kernels: planned by the epochs between the barriers of a block."""
