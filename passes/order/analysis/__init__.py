# SPDX-License-Identifier: Apache-2.0
"""What may move within a dataflow block, and which bytes its operators keep alive."""
