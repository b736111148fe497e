# SPDX-License-Identifier: Apache-2.0
"""Who is live when, and how big: facts read off TVM IR."""
