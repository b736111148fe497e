# SPDX-License-Identifier: Apache-2.0
"""Problems and plans in files."""
