# SPDX-License-Identifier: Apache-2.0
"""What an Ascend core's memories ask beyond live ranges: pipes, in-place rules, loops."""
