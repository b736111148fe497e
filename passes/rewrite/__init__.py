# SPDX-License-Identifier: Apache-2.0
"""Writing a plan into TVM IR. Nothing here decides."""
