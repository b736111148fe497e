# SPDX-License-Identifier: Apache-2.0
"""What the statements of a function say of its allocations, for StorageRewrite."""
