# SPDX-License-Identifier: Apache-2.0
"""TVM's IR as our passes read it: walks, buffers and types."""
