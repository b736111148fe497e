# SPDX-License-Identifier: Apache-2.0
"""Analysis of a function's statements and allocations, for StorageRewrite."""
