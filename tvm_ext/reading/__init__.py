# SPDX-License-Identifier: Apache-2.0
"""Programs that users name, read: workloads, kernels, files, tables of buffers, and open sizes.

``programs`` finds what a name means; ``program_files`` and ``network_files`` read a file of it;
``importers`` are TVM's, and keep the names of tensors.
"""
