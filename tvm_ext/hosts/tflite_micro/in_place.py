# SPDX-License-Identifier: Apache-2.0
"""Results that may take the bytes of an operand, by how TensorFlow Lite Micro's kernels run.

TensorFlow Lite Micro places no result in place itself, but it runs a plan in which both are at one
offset. That is right where a kernel reads each element for the last time before it writes the
element's place. The tables hold for the reference kernels; each operator of them is tried there.
"""

from __future__ import annotations

from collections.abc import Iterator

from tvm_ext.hosts.tflite_micro.arena_head import ArenaHead
from tvm_ext.hosts.tflite_micro.read_model import Model

_ELEMENTWISE = """
    ABS ADD CAST CEIL COS DIV ELU EQUAL EXP FLOOR FLOOR_DIV FLOOR_MOD GREATER GREATER_EQUAL
    HARD_SWISH L2_NORMALIZATION LEAKY_RELU LESS LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR
    LOGISTIC LOG_SOFTMAX MAXIMUM MINIMUM MUL NEG NOT_EQUAL PRELU QUANTIZE RELU RELU6 ROUND RSQRT
    SELECT_V2 SIN SOFTMAX SQRT SQUARE SQUARED_DIFFERENCE SUB TANH
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Operators that make each row or element of the same one of operands of the result's shape."""

RESHAPING = frozenset({"EXPAND_DIMS", "RESHAPE"})
"""Operators that copy their first operand as it is; of equal addresses, to itself.

``SQUEEZE`` is not among them: it calls ``memcpy``, for which equal addresses are not defined.
"""


def in_place_pairs(model: Model, arena: ArenaHead) -> Iterator[tuple[int, int]]:
    """Yield operand and result, by their numbers in a plan, that may be at one offset.

    The operand is used by no later operator and is no result of its subgraph; none is a variable;
    both take equally many bytes, and have one shape where the operator is no `RESHAPING` one.
    """
    residents = {each.tensor: each for each in arena.residents}
    for step in arena.steps:
        graph, base = model.subgraphs[step.subgraph], model.first_tensor(step.subgraph)
        one = graph.operators[step.operator]
        if len(one.outputs) != 1 or one.name not in ELEMENTWISE | RESHAPING:
            continue
        (result,) = one.outputs
        target = residents.get(base + result)
        operands = one.operands[:1] if one.name in RESHAPING else one.operands
        for operand in dict.fromkeys(operands):
            source = residents.get(base + operand)
            old, new = graph.tensors[operand], graph.tensors[result]
            kept = operand in graph.outputs or old.is_variable or new.is_variable
            if source is None or target is None or kept:
                continue
            is_alike = old.size == new.size and (one.name in RESHAPING or old.shape == new.shape)
            if is_alike and source.last == target.first == step.time and source.first < step.time:
                yield base + operand, base + result
