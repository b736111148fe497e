# SPDX-License-Identifier: Apache-2.0
"""The commands of ``tvm-ext``, and the options that they share."""
