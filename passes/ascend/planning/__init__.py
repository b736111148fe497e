# SPDX-License-Identifier: Apache-2.0
"""Levels of reuse, the search for what waits least, and what to give up."""
