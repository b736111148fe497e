# SPDX-License-Identifier: Apache-2.0
"""Large neighbourhood search: blocks are taken out and put back where they cost less."""
