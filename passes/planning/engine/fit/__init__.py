# SPDX-License-Identifier: Apache-2.0
"""First fit and best fit: blocks in a fixed order, each in a gap between those before it."""
