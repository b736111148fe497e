# SPDX-License-Identifier: Apache-2.0
"""First and best fit."""
