# SPDX-License-Identifier: Apache-2.0
"""OrderForMemory: the operators of a network in the order in which the least memory is live."""
