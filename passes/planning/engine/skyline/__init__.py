# SPDX-License-Identifier: Apache-2.0
"""The skyline greedy on many blocks, and the order in which it takes them."""
