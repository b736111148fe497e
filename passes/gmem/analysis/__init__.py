# SPDX-License-Identifier: Apache-2.0
"""Analysis of the memory of Relax functions: tensors, live ranges, TVM's own sharing."""
