# SPDX-License-Identifier: Apache-2.0
"""Orders of networks: what is known to be saved, the same results, commands, symbolic sizes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from llvm_level import at_level
from order_networks import NASNET, NETWORKS, cells_at_32, unet_plus_plus
from relax_programs import parse
from relax_runs import run
from saved_json import saved_json
from sweeps import sample
from test_order_for_memory import LATE_READ, fused, ordered, planned_bytes
from tvm import relax
from written_networks import WRITTEN

import tvm_ext
from passes.gmem.options import GMEMOptions
from passes.order.function_order import FunctionOrder, order_function
from passes.planning import Budget
from tvm_ext.__main__ import main


@cache
def small_nasnet() -> tvm.IRModule:
    return cells_at_32(NASNET, 4, 1)


def order_of(mod: tvm.IRModule, function: str = "main", fuse: bool = True) -> FunctionOrder:
    variable = mod.get_global_var(function)
    return order_function(
        fused(mod, fuse), variable, GMEMOptions(target=tvm.target.Target("llvm")), Budget(200_000)
    )


def saved(order: FunctionOrder) -> float:
    return round(100 * (1 - order.found / order.given), 1)


@pytest.mark.parametrize(
    ("make", "fuse", "least"),
    [
        pytest.param(small_nasnet, True, 10.0, marks=pytest.mark.slow),
        (lambda: unet_plus_plus(3, 4, 32), False, 0.0),
        (NETWORKS["train_mlp"], False, 20.0),
    ],
)
def test_no_order_of_a_network_is_lower(make, fuse: bool, least: float):
    mod = make()
    function = "main_adjoint" if "main_adjoint" in str(mod.get_global_vars()) else "main"
    order = order_of(mod, function, fuse)
    assert order.optimal
    assert saved(order) >= least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("nasnet_cifar", 22.0),
        ("nasnet_imagenet", 22.0),
        ("amoeba_cifar", 14.0),
        ("amoeba_imagenet", 22.0),
        ("darts_cifar", 12.0),
        ("darts_imagenet", 12.0),
        ("randwire_0", 30.0),
        ("unet_plus_plus", 5.0),
    ],
)
def test_no_order_of_a_large_network_is_lower(name: str, least: float):
    order = order_of(NETWORKS[name]())
    assert order.optimal
    assert saved(order) >= least


def test_all_copies_of_weights_at_once_do_not_defeat_the_search():
    written = fused(WRITTEN["bert_layer"].build(), fuse=False)
    variable = next(v for v in written.get_global_vars() if isinstance(written[v], relax.Function))
    func = written[variable]
    (block,) = func.body.blocks
    inputs = {param.__chandle__() for param in func.params[1:]}
    first, rest = [], []
    for binding in block.bindings:
        uses = relax.analysis.free_vars(binding.value)
        (first if uses and all(u.__chandle__() in inputs for u in uses) else rest).append(binding)
    assert len(first) > 4
    body = relax.SeqExpr([relax.DataflowBlock([*first, *rest])], func.body.body)
    worst = written.clone()
    changed = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
    worst.update_func(variable, changed)
    options = GMEMOptions(target=tvm.target.Target("llvm"))
    orders = [
        order_function(mod, mod.get_global_var(variable.name_hint), options, Budget(20_000))
        for mod in (written, worst)
    ]
    assert orders[0].given < orders[1].given
    assert orders[0].found == orders[1].found
    assert all(order.optimal for order in orders)


MODULES = {
    "late read": lambda: parse(LATE_READ),
    "small_nasnet": small_nasnet,
    "unet_plus_plus": lambda: unet_plus_plus(4, 2, 32),
}


@pytest.mark.parametrize("name", sample(MODULES, "late read"))
def test_a_module_computes_the_same_in_its_order(name: str):
    mod = MODULES[name]()
    rng = np.random.default_rng(0)
    arrays = [
        rng.standard_normal([int(extent) for extent in param.ty.shape], dtype="float32") * 0.1
        for param in mod["main"].params
    ]
    results = []
    for order in (False, True):
        pipeline = tvm_ext.relax_pipeline("llvm", order=order)
        executable = tvm.compile(mod, at_level("llvm"), relax_pipeline=pipeline)
        machine = relax.VirtualMachine(executable.jit(), tvm.cpu())
        results.append(run(machine, "main", arrays))
    np.testing.assert_equal(*results)


# Sizes that only the running program knows

SYMBOLIC = """
@R.function
def main(x: R.Tensor(("n", 64), "float32"), w: R.Tensor(("n", 64), "float32")):
    n = T.int64()
    with R.dataflow():
        early = R.negative(w)
        wide = R.tile(x, (1, 4))
        wider = R.exp(wide)
        narrow = R.sum(R.reshape(wider, (n, 4, 64)), axis=[1])
        r = R.add(narrow, early)
        R.output(r)
    return r
"""


@pytest.mark.parametrize("bounds", [None, {"n": 16}])
def test_symbolic_sizes_are_ordered_by_their_factors_or_bounds(bounds):
    written = fused(parse(SYMBOLIC))
    found = ordered(written, upper_bounds=bounds)
    labels = [str(binding.var.name) for binding in found["main"].body.blocks[0].bindings]
    assert labels.index("early") == labels.index("r") - 1
    if bounds is not None:
        func = written["main"].with_attr("tir_var_upper_bound", bounds)
        written.update_func(written.get_global_var("main"), func)
        (before,), (after,) = (planned_bytes(m).values() for m in (written, ordered(written)))
        assert before - after == 64 * 16 * 4


# Commands


@pytest.fixture(scope="module")
def llama_layer(tmp_path_factory) -> str:
    """A file of a network that transposes weights long before it uses them."""
    path = tmp_path_factory.mktemp("order") / "llama_layer.json"
    path.write_text(saved_json(WRITTEN["llama_layer"].build()))
    return str(path)


def test_the_command_shows_both_orders(llama_layer, tmp_path, capsys):
    path = tmp_path / "orders.json"
    assert main(["compare", llama_layer, "order", "--json", str(path)]) == 0
    rows = rows_of(path)
    text = capsys.readouterr().out
    fused_row, apart = rows
    assert fused_row["function"].endswith(", fused")
    assert (
        number(fused_row["found"]) == number(fused_row["bound"]) <= number(fused_row["as written"])
    )
    assert fused_row["proven"] == "lowest of any order"
    assert all(row["found"] in text for row in (fused_row, apart))


def test_the_command_says_that_no_size_is_known(tmp_path, capsys):
    path = tmp_path / "network.py"
    path.write_text("""
@R.function
def main(x: R.Tensor(("n", 16), "float32")) -> R.Tensor(("n", 16), "float32"):
    with R.dataflow():
        y = R.nn.relu(x)
        z = R.nn.softmax(y)
        R.output(z)
    return z
""")
    assert main(["compare", str(path), "order"]) == 0
    assert "sizes that only the running program knows: n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "ascend:gelu", "order"],
        ["map", "ascend:gelu", "order", "-o", "x.html"],
    ],
)
def test_what_has_no_order_is_one_line(arguments, capsys):
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_map_says_what_moved():
    mod = WRITTEN["llama_layer"].build()
    (variable,) = (v for v in mod.get_global_vars() if isinstance(mod[v], relax.Function))
    mod[variable] = mod[variable].without_attr("num_input")  # No parameter is said to be a weight.
    (view,) = tvm_ext.memory_map(mod, view="order").memories
    moved = [name for name, note in view.notes.items() if "moved" in note.what]
    assert len(moved) == 1
    (written,) = tvm_ext.memory_map(mod).memories
    assert view.plans[0].plan.peak < written.plans[0].plan.peak


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the table of orders in a file of data."""
    data = json.loads(path.read_text())
    head, *rows = data["facts"][0]["rows"]
    return [dict(zip(head, row, strict=True)) for row in rows]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def shown_orders(mod: tvm.IRModule, folder: Path) -> list[dict[str, Any]]:
    """Return what the command says of a module's orders, fused and not."""
    (folder / "network.json").write_text(saved_json(mod))
    told = folder / "told.json"
    assert main(["compare", str(folder / "network.json"), "order", "--json", str(told)]) == 0
    return rows_of(told)


def test_what_was_not_searched_is_not_said_to_be_proven(tmp_path):
    mod = relax.transform.ToNonDataflow()(parse(LATE_READ))
    for row in shown_orders(mod, tmp_path):
        assert (row["moved"], row["proven"], row["as written"]) == ("0", "no", row["found"])


def test_what_is_not_counted_is_named_as_the_author_does(tmp_path, capsys):
    mod = parse("""
@R.function
def main(x: R.Tensor((4, 4), "float32"), y: R.Tensor(("n", 4), "float32")):
    with R.dataflow():
        first = R.exp(x)
        mine = R.tanh(first)
        found = R.nonzero(mine)
        rows = R.tanh(y)
        out = R.tanh(rows)
        R.output(found, out)
    return (found, out)
""")
    shown_orders(mod, tmp_path)
    said = capsys.readouterr().out
    (reason,) = (line for line in said.splitlines() if line.startswith("- main, not fused: "))
    assert "'mine'" in reason
    assert "'found'" in reason
    assert "sizes that only the running program knows: n" in said
