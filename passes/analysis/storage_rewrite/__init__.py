# SPDX-License-Identifier: Apache-2.0
"""The analyses of the mirrored `StorageRewrite`."""
