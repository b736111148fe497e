# SPDX-License-Identifier: Apache-2.0
"""From a TIR function to planning problems."""
