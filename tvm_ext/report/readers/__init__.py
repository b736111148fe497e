# SPDX-License-Identifier: Apache-2.0
"""Readers: each yields the memories of one kind of program with their plans, and other facts."""
