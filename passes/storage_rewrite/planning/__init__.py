# SPDX-License-Identifier: Apache-2.0
"""Memory sharing in StorageRewrite."""
