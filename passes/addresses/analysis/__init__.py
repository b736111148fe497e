# SPDX-License-Identifier: Apache-2.0
"""What a function of tile primitives does with the memory of its chip."""
