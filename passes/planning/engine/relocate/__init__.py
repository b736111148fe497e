# SPDX-License-Identifier: Apache-2.0
"""Less penalty by moving buffers: a large neighbourhood search."""
