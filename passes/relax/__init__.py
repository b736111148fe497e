# SPDX-License-Identifier: Apache-2.0
"""What a Relax function keeps in memory, and when: read once, for all that plan it."""
