# SPDX-License-Identifier: Apache-2.0
"""The stock passes and ours side by side: as data, as tables, and as a command."""
