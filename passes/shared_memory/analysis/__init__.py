# SPDX-License-Identifier: Apache-2.0
"""From a kernel in TVM's IR to what its threads do with shared memory, as plain data."""
