# SPDX-License-Identifier: Apache-2.0
"""Slices, groups, time steps and local memory."""
