# SPDX-License-Identifier: Apache-2.0
"""A program's memories, each planned by several planners: `comparison` and `map` show them.

`placements` has the plans as data, and imports no TVM. `prim_func` and `relax_function` read the
functions of a program and ask the planners.
"""
