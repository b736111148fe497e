# SPDX-License-Identifier: Apache-2.0
"""LayerGroup: layers cut into slices that stay in local memory."""
