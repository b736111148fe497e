# SPDX-License-Identifier: Apache-2.0
"""Programs that users name, read: workloads, kernels, files, tables of buffers, open sizes."""
