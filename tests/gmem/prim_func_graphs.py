# SPDX-License-Identifier: Apache-2.0
"""Whole graphs in one function, as `te.create_prim_func` makes them, with numpy functions."""

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te, topi

Graph = Callable[[], tuple[Any, Callable[..., list[np.ndarray]]]]
GRAPHS: dict[str, Graph] = {}


def graph(make: Graph) -> Graph:
    """Enter a graph: a function that returns it, and a numpy function that computes the same."""
    GRAPHS[make.__name__] = make
    return make


def scaled(x: Any, by: int) -> Any:
    """Return a step that no neighbour can be merged with: reversed rows, times a number."""
    rows = int(x.shape[0])
    return te.compute(x.shape, lambda i, j: x[rows - 1 - i, j] * by, name=f"scaled{by}")


def halved(x: Any) -> Any:
    """Return the sums of each two rows."""
    rows, columns = map(int, x.shape)
    return te.compute((rows // 2, columns), lambda i, j: x[2 * i, j] + x[2 * i + 1, j])


@graph
def residual():
    x = te.placeholder((16, 32), name="x")
    a = scaled(x, 2)
    b = topi.nn.relu(a)
    c = scaled(b, 3)
    d = scaled(c, 1)
    out = topi.add(scaled(topi.add(d, b), 5), x)

    def expected(x):
        b = np.maximum(2 * x[::-1], 0)
        return [5 * (3 * b + b)[::-1] + x]

    return te.create_prim_func([x, out]), expected


@graph
def concat():
    x = te.placeholder((8, 24), name="x")
    wide = topi.concatenate([scaled(x, 2), scaled(x, 3), x], axis=1)
    out = topi.sum(scaled(wide, 1), axis=1)

    def expected(x):
        return [np.concatenate([2 * x[::-1], 3 * x[::-1], x], axis=1)[::-1].sum(axis=1)]

    return te.create_prim_func([x, out]), expected


@graph
def several_outputs():
    x = te.placeholder((16, 16), name="x")
    a = scaled(x, 2)
    b = topi.transpose(scaled(a, 3))
    total = topi.sum(b, axis=0)
    out = scaled(topi.subtract(a, b), 1)

    def expected(x):
        a = 2 * x[::-1]
        b = (3 * a[::-1]).T
        return [a, b.sum(axis=0), (a - b)[::-1]]

    return te.create_prim_func([x, a, total, out]), expected


@graph
def reshape():
    x = te.placeholder((8, 32), name="x")
    a = scaled(x, 2)
    r = topi.reshape(a, (32, 8))
    b = scaled(r, 3)
    c = scaled(b, 1)
    out = topi.add(topi.reshape(c, (8, 32)), scaled(a, 1))

    def expected(x):
        a = 2 * x[::-1]
        c = 3 * a.reshape(32, 8)
        return [c.reshape(8, 32) + a[::-1]]

    return te.create_prim_func([x, out]), expected


@graph
def long_skip():
    x = te.placeholder((32, 8), name="x")
    down = [scaled(x, 2)]
    for _ in range(3):
        down.append(halved(down[-1]))
    up = down.pop()
    for skip in reversed(down):
        up = topi.add(scaled(topi.repeat(up, 2, 0), 1), skip)

    def expected(x):
        down = [2 * x[::-1]]
        for _ in range(3):
            down.append(down[-1][::2] + down[-1][1::2])
        up = down.pop()
        for skip in reversed(down):
            up = np.repeat(up, 2, 0)[::-1] + skip
        return [up]

    return te.create_prim_func([x, up]), expected


@graph
def dense():
    x, w, v = (te.placeholder((16, 16), name=name) for name in ("x", "w", "v"))
    hidden = topi.nn.relu(topi.nn.matmul(x, w))
    scaled_hidden = scaled(hidden, 2)
    out = topi.add(topi.nn.matmul(scaled_hidden, v), hidden)

    def expected(x, w, v):
        hidden = np.maximum(x @ w, 0)
        return [(2 * hidden[::-1]) @ v + hidden]

    func = te.create_prim_func([x, w, v, out])
    return func.with_attr("num_input", 1), expected
