# SPDX-License-Identifier: Apache-2.0
"""What stands in a node, as threads of one process ask for it at the same time."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

from tvm import tirx

from passes.ir.statements import nodes_of

THREADS, TERMS, ROUNDS = 4, 60, 1500


def test_threads_that_read_at_once_see_their_own_nodes_alone():
    buffers = [tirx.decl_buffer((1,), "float32", f"b{at}") for at in range(THREADS)]

    def number_of_wrong_answers(buffer: tirx.Var) -> int:
        total = reduce(tirx.Add, [tirx.BufferLoad(buffer, [0]) for _ in range(TERMS)])
        found = (nodes_of(total) for _ in range(ROUNDS))
        return sum(
            len(loads) != TERMS or not all(load.source.same_as(buffer) for load in loads)
            for loads in found
        )

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            assert sum(pool.map(number_of_wrong_answers, buffers)) == 0
    finally:
        sys.setswitchinterval(before)
