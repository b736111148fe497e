# SPDX-License-Identifier: Apache-2.0
"""PlanAddresses: byte offsets for the buffers of a PrimFunc."""
