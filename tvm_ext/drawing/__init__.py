# SPDX-License-Identifier: Apache-2.0
"""Plans and simulations as pictures."""
