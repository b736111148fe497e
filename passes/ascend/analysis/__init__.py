# SPDX-License-Identifier: Apache-2.0
"""What becomes one instruction, on which pipe, and what may be in place."""
