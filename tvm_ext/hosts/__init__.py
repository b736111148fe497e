# SPDX-License-Identifier: Apache-2.0
"""Our planners in other compilers: an adapter for each, which imports its host when it is called.

An adapter is three steps: read the host's buffers and their live ranges as a `Problem`, solve it,
and write the offsets back. ``docs/hosts.md`` shows how to write one.
"""
