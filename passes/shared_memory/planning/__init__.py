# SPDX-License-Identifier: Apache-2.0
"""From a kernel as plain data to a problem whose positions are epochs. Nothing here knows TVM."""
