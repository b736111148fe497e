# SPDX-License-Identifier: Apache-2.0
"""What a Relax function's kernels read for a slice of what they write, for LayerGroup."""
