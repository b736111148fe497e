# SPDX-License-Identifier: Apache-2.0
"""TVM: conditions in conditions take exponential time to simplify."""

from tvm import tirx
from tvm.sym import Analyzer


def visited(depth):
    x = tirx.Var("x", "int64")
    value = tirx.const(0, "int64")
    for level in range(depth):
        value = tirx.if_then_else(x < value, x + level, tirx.const(level, "int64"))
    analyzer = Analyzer()
    analyzer.rewrite_simplify(value)
    return analyzer.rewrite_simplify_stats.nodes_visited


print("wrong" if visited(5) > 5 * visited(4) else "mended")  # 25,398 nodes and 4,230
