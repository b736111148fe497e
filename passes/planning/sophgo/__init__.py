# SPDX-License-Identifier: Apache-2.0
"""tpu-mlir's planning of global memory."""
