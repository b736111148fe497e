# SPDX-License-Identifier: Apache-2.0
"""Groups of layers as kernels that run slice by slice in local memory."""
