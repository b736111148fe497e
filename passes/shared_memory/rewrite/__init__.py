# SPDX-License-Identifier: Apache-2.0
"""Plans and barriers written into a kernel."""
