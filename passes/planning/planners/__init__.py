# SPDX-License-Identifier: Apache-2.0
"""The general planners, a file each."""
