# SPDX-License-Identifier: Apache-2.0
"""AscendNPU-IR's planning by levels of reuse."""
