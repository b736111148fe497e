# SPDX-License-Identifier: Apache-2.0
"""The planning of the mirrored `StorageRewrite`."""
