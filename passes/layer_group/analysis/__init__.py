# SPDX-License-Identifier: Apache-2.0
"""What a kernel reads for a slice of what it makes."""
