# SPDX-License-Identifier: Apache-2.0
"""Compiler passes: analysis, planning and rewriting of memory."""
