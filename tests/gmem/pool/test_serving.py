# SPDX-License-Identifier: Apache-2.0
"""What a module's functions take from one pool: the number that is said, against the real pool."""

from __future__ import annotations

import json
from itertools import permutations

import numpy as np
import pytest
import tvm
from measured_memory import watch
from paged_llama import Shape
from relax_programs import parse
from relax_runs import build, compiled, lower
from served_memory import Server, orders
from tvm import relax
from tvm.target import Target

import tvm_ext
from passes.gmem import served_memory
from tvm_ext.report import Ask
from tvm_ext.report.readers.tensor_memories import read_network
from tvm_ext.transform import GMEMAllocate

FUNCTIONS = """
def prefill(x: R.Tensor((96, 256), "float32"), w: R.Tensor((256, 256), "float32")):
    a = R.matmul(x, w)
    b = R.nn.relu(a)
    c = R.add(a, b)
    d = R.matmul(c, w)
    e = R.negative(d)
    return (e, c)

def decode(x: R.Tensor(("n", 256), "float32"), w: R.Tensor((256, 256), "float32")):
    n = T.int64()
    R.func_attr({"tir_var_upper_bound": {"n": 8}})
    a = R.matmul(x, w)
    b = R.nn.relu(R.concat((a, a), axis=0))
    c = R.sum(b, axis=0, keepdims=True)
    d = R.add(R.matmul(R.add(x, c), w), a)
    return d

def sample(x: R.Tensor((64, 64), "float32"), c: R.Tensor((), "bool")):
    a = R.nn.softmax(x)
    if c:
        b = R.exp(a)
        r = R.sum(R.multiply(b, R.add(b, a)))
    else:
        r = R.max(a)
    return R.add(a, r)
"""


def test_the_pool_takes_what_is_said_in_any_order():
    lowered = lower(parse(FUNCTIONS), fuse=False)
    planned = GMEMAllocate(metadata=True)(lowered)
    library = compiled(planned, None)
    said = json.loads(relax.VirtualMachine(library, tvm.cpu())["tvm_ext_memory"]())
    assert said["functions"] == ["decode", "prefill", "sample"]
    assert said["sizes"] == {"n": 8}
    rng = np.random.default_rng(0)

    def tensor(*shape: int) -> tvm.runtime.Tensor:
        return tvm.runtime.tensor(rng.standard_normal(shape, dtype="float32"))

    w = tensor(256, 256)
    arguments = {
        "prefill": [[tensor(96, 256), w]],
        "decode": [[tensor(n, 256), w] for n in (8, 8)],
        "sample": [[tensor(64, 64), tvm.runtime.tensor(np.array(way))] for way in (False, True)],
    }
    every = [(*first, *second) for first in permutations(arguments) for second in [first[::-1]]]
    for order in [*every, ("decode",) * 3, tuple(arguments)]:
        machine, held = relax.VirtualMachine(library, tvm.cpu()), {}

        def call(machine=machine, held=held, order=order):
            for at, name in enumerate(order):
                ways = arguments[name]
                held[name] = machine[name](*ways[order[:at].count(name) % len(ways)])

        taken = watch(machine, call).nbytes
        assert taken <= said["bytes"]
        if order in every:
            assert taken == said["bytes"]


def test_a_server_of_a_language_model_takes_what_is_said():
    server = Server(Shape(1, 64, 8, 2, 160, 9600, chunk=40, batch=6))
    assert {"sample", "batch_verify"} <= set(server.served.functions)
    assert dict(server.served.sizes) == {"batch_size": 6, "draft_len": 24, "seq_len": 40}
    taken = [server.taken(order) for order in orders(server.served.functions)]
    heap = 4096  # On the machine's CPU, the pool holds the values of dimensions.
    assert server.served.nbytes <= max(taken) <= server.served.nbytes + heap
    assert max(taken) > server.taken(server.served.functions, hold=False)


OPEN = """
def main(x: R.Tensor(("n", 8), "float32")):
    a = R.exp(x)
    return R.sum(R.concat((a, x), axis=0))

def other(x: R.Tensor((64, 8), "float32")):
    return R.sum(R.concat((R.exp(x), x), axis=0))
"""


def test_a_dimension_without_a_bound_is_named():
    text = str(tvm_ext.compare(parse(OPEN), "best"))
    assert "for all functions is not known: function 'main': dimension 'n' has no upper" in text


def test_a_result_counts_where_no_other_tensor_has_its_unit():
    alone = OPEN.replace("R.sum(R.concat((a, x), axis=0))", "a", 1)
    assert "return a" in alone
    text = str(tvm_ext.compare(parse(alone), "best"))
    assert "for all functions is not known: function 'main': dimension 'n' has no upper" in text


def test_a_function_that_calls_another_is_named():
    calls = OPEN.replace("R.sum(R.concat((R.exp(x), x), axis=0))", "Module.main(x)")
    mod = parse(calls)
    text = str(tvm_ext.compare(mod, "best", upper_bounds={"n": 64}))
    assert "function 'other': it calls another function" in text


@pytest.mark.parametrize("bound", [64, 100])
def test_it_is_said_beside_the_tables(bound: int):
    mod = parse(OPEN)
    main = mod.get_global_var("main")
    mod.update_func(main, mod[main].with_attr("tir_var_upper_bound", {"n": bound}))
    text = str(tvm_ext.compare(mod, "best"))
    (line,) = (line for line in text.splitlines() if "run in turns" in line)
    assert f"main, other run in turns at n={bound}" in line
    found = read_network(mod, Target("llvm"), Ask())
    assert f"{served_memory(found.functions, found.options).nbytes:,} bytes" in line


def test_without_metadata_there_is_no_such_function():
    machine = build(lower(parse(FUNCTIONS), fuse=False), GMEMAllocate())
    with pytest.raises(AttributeError):
        machine["tvm_ext_memory"]
