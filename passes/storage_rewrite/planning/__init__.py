# SPDX-License-Identifier: Apache-2.0
"""Who shares memory with whom in StorageRewrite."""
