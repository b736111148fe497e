# SPDX-License-Identifier: Apache-2.0
"""Orders of a graph of operators: what they take, a search for the least, and a lower bound."""
