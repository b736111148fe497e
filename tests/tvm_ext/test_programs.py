# SPDX-License-Identifier: Apache-2.0
"""What a user may hand to commands and functions: networks without a target, chips, names."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from textwrap import indent

import pytest
import tvm
from chain import CHAIN
from numbers_of import numbers
from program_text import program
from saved_json import saved_json
from tvm import relax

import tvm_ext
from passes.ir import find_linear_access
from passes.planning import Buffer, Problem
from tvm_ext import workloads
from tvm_ext.__main__ import main
from tvm_ext.reading.input_sizes import InputSizes, dimensions
from tvm_ext.reading.programs import load_program, program_of
from tvm_ext.report.ask import Ask
from tvm_ext.report.tables import end_of

CHIP = (
    """
import tvm_ext
from tvm_ext import MemoryHierarchy, MemoryScope
from tvm.script import ir as I, tirx as T

tvm_ext.register_chip(
    "acme/x", MemoryHierarchy((MemoryScope("local.UB", 1024, 32, reserved=((0, 256),)),))
)

@I.ir_module
class First:
"""
    + indent(CHAIN.replace('"global"', '"local.UB"'), "    ")
    + """
@I.ir_module
class Second:
    @T.prim_func(s_tir=True)
    def parallel(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")):
        for p in T.parallel(4):
            z = T.alloc_buffer((16,), "float32")
            for i in range(16):
                z[i] = a[p * 16 + i]
            for i in range(16):
                b[p * 16 + i] = z[15 - i]
"""
)


@pytest.fixture
def chip(tmp_path):
    path = tmp_path / "withchip.py"
    path.write_text(CHIP)
    return str(path)


def chain(extent: object = 64) -> tvm.IRModule:
    """Operators in a chain, which the stock plan gives two tensors to."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((extent, 16), "float32"))
    with builder.function("main", [x]):
        y = x
        for _ in range(4):
            y = builder.emit(relax.op.cumsum(y, axis=1))
        builder.emit_func_output(y)
    return builder.finalize()


# ------------------------------------------------------------- a network without a target


def test_a_network_without_a_target_is_lowered_for_llvm():
    mod = chain()
    compared = tvm_ext.compare(mod, "best")
    assert any("llvm" in note for note in compared.notes)
    named = tvm_ext.compare(mod, "best", target="llvm")
    assert not any("llvm" in note for note in named.notes)
    key = [(s.name, *numbers(s)) for s in compared.memories]
    assert key == [(s.name, *numbers(s)) for s in named.memories]
    # Of four tensors of 4096 bytes the last is returned, and two of the others take turns.
    assert key[-1] == ("tensors, not fused", 3 * 4096, 2 * 4096, 2 * 4096)
    assert "llvm" in tvm_ext.memory_map(mod).title
    assert tvm_ext.compare(mod["main"], "best").memories


@pytest.mark.parametrize("command", ["compare {}.json", "compare {}.py", "map {}.py -o {}.html"])
def test_commands_say_what_a_network_is_lowered_for(write, run, command):
    path = write("network.json", saved_json(chain())).removesuffix(".json")
    write("network.py", chain().script(show_meta=True))
    status, out, _ = run(*command.replace("{}", path).split())
    assert status == 0
    assert "lowered for llvm, as no target is named" in out


# ------------------------------------------------------------------ what is left out is said


def test_symbolic_tensors_are_reported():
    mod = chain(tvm.tirx.Var("n", "int64"))
    compared = tvm_ext.compare(mod, "best")
    fixed = tvm_ext.compare(InputSizes(bind={"n": 64}).apply(mod), "best")
    for each, whole in zip(compared.memories, fixed.memories, strict=True):
        assert each.name == f"{whole.name}, for each n (axis 0 of x)"
        assert len(each.problem.buffers) == len(whole.problem.buffers)
        (_, one), (_, other) = each.plans, whole.plans
        assert 64 * one.plan.peak == other.plan.peak
        assert [64 * number for number in numbers(each)] == list(numbers(whole))
    text = str(compared)
    assert "nothing to plan" not in text
    assert "--bind n=8" in text


def test_the_order_of_factors_is_no_matter_for_what_the_stock_pass_takes():
    """TVM writes the factors of a storage's size in the order of the shape."""
    builder = relax.BlockBuilder()
    batch, length = tvm.tirx.Var("batch", "int64"), tvm.tirx.Var("length", "int64")
    x = relax.Var("x", relax.TensorType((batch, 4, length), "float32"))
    w = relax.Var("w", relax.TensorType((4, 4, 3), "float32"))
    with builder.function("main", [x, w]):
        y = builder.emit(relax.op.nn.conv1d(x, w, strides=2))
        for _ in range(3):
            y = builder.emit(relax.op.nn.conv1d(relax.op.exp(y), w, padding=1))
        builder.emit_func_output(y)
    compared = tvm_ext.compare(builder.finalize(), "best")
    assert "--bind batch=8,length=8 plans at a value" in str(compared)
    fused, apart = compared.memories
    for found in (fused, apart):
        assert found.unit == "((length - 3) // 2 + 1) * batch"
        assert found.name.endswith(", of length (axis 2 of x) and batch (axis 0 of x)")
        assert numbers(found)[1] == 2 * 4 * 4  # Two rows of four channels, in turns


def test_a_map_of_a_dynamic_network_has_bytes_for_each_of_its_sizes():
    mod = chain(tvm.tirx.Var("n", "int64"))
    planners = ("stock", "best")
    (dynamic,) = tvm_ext.memory_map(mod, planners).memories
    bound = InputSizes(bind={"n": 64}).apply(mod)
    (fixed,) = tvm_ext.memory_map(bound, planners).memories
    assert (dynamic.unit, fixed.unit) == ("n", "")
    assert dynamic.name == "tensors, fused, for each n (axis 0 of x)"
    for one, other in zip(dynamic.plans, fixed.plans, strict=True):
        assert 64 * one.plan.peak == other.plan.peak


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"bind": {"m": 8}}, "no symbolic dimension 'm'.*there are: n"),
        ({"bind": {"n": 0}}, "needs an integer above 0"),
        ({"bind": ["n"]}, "must be a mapping from names"),
        ({"shapes": {"y": (4, 16)}}, "no input 'y'.*there are: x"),
        ({"shapes": {"x": (4, 8)}}, "input 'x': dimension 1 is 16, not 8"),
        ({"shapes": {"x": (4,)}}, "input 'x' has 2 dimensions, and 1 are given"),
        ({"shapes": {"x": (4, 16)}, "bind": {"n": 5}}, "input 'x': dimension 0 is 5, not 4"),
    ],
)
def test_sizes_that_do_not_fit_a_network_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        InputSizes(**sizes).apply(chain(tvm.tirx.Var("n", "int64")))


def test_a_weight_is_no_input_whose_shape_is_open():
    mod = workloads.model("bert")
    with pytest.raises(ValueError, match=r"no input 'network\.pooler.*': there are: inputs_0$"):
        InputSizes(shapes={"network.pooler.dense.bias": (4,)}).apply(mod)


def test_a_dimension_is_said_with_its_input_and_its_bound():
    found = dimensions(workloads.model("resnet50_dynamic"), {"batch": 8})
    assert found == [("batch", "batch (axis 0 of x)", (64,), False)]
    mod = chain(tvm.tirx.Var("n", "int64"))
    assert dimensions(mod) == [("n", "n (axis 0 of x)", (), True)]
    for name, bound in (("other", {"n": 16}), ("third", {"n": 4})):
        mod[name] = mod["main"].with_attrs({"global_symbol": name, "tir_var_upper_bound": bound})
    assert dimensions(mod) == [("n", "n (axis 0 of x)", (4, 16), True)]
    assert dimensions(mod, {"n": 9}) == [("n", "n (axis 0 of x)", (4, 9, 16), False)]


@pytest.mark.parametrize("size", [1, 17])
def test_a_size_outside_of_declared_bounds_is_refused(size):
    mod = chain(tvm.tirx.Var("n", "int64"))
    bounds = {"tir_var_lower_bound": {"n": 2}, "tir_var_upper_bound": {"n": 16}}
    mod["main"] = mod["main"].with_attrs(bounds)
    for sizes in (InputSizes(bind={"n": size}), InputSizes(shapes={"x": (size, 16)})):
        with pytest.raises(
            ValueError, match=f"'main': 'n' is .*least 2, and at most 16, got {size}"
        ):
            sizes.apply(mod)
    assert InputSizes(bind={"n": 16}).apply(mod)


def test_a_network_without_symbolic_dimensions_says_that_it_has_none():
    with pytest.raises(ValueError, match="no symbolic dimension 'n', nor any other"):
        InputSizes(bind={"n": 3}).apply(chain(4))


def test_a_command_takes_sizes_of_inputs(run, write, tmp_path):
    path = write("network.json", saved_json(chain(tvm.tirx.Var("n", "int64"))))
    for size in (["--bind", "n=64"], ["--shape", "x=64,16"]):
        status, out, _ = run("compare", path, "--planners", "best", *size)
        assert status == 0
        assert "for each" not in out
        status, out, _ = run("map", path, "-o", str(tmp_path / "out.html"), *size)
        assert status == 0
        assert "for each" not in out
        memories = ["--memories", "sram:8KiB,dram"]
        for command in (["compare", path], ["map", path, "-o", str(tmp_path / "out.html")]):
            assert run(*command, *memories, *size)[0] == 0


def test_an_error_of_the_lowering_names_the_operator_it_came_from():
    """TVM's error says nothing of the norm, whose input has a shape that is not known."""
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((n, 16), "float32"))
    scale = relax.Var("scale", relax.TensorType((16,), "float32"))
    with builder.function("main", [x, scale]):
        y = builder.emit(relax.op.exp(x), "start")
        unknown = relax.TensorType(ndim=2, dtype="float32")
        y = builder.match_cast(builder.emit(relax.op.unique(y, axis=0)), unknown)
        y = builder.emit(relax.op.nn.layer_norm(y, scale, scale, axes=[-1]), "encoder.norm")
        builder.emit_func_output(y)
    mod = tvm.IRModule({**builder.finalize().functions, "kernel": tvm.script.from_source(CHAIN)})
    with pytest.raises(ValueError, match=r"'main' for.*layer_norm \(encoder.norm\).*--bind n=8"):
        program_of(mod, "llvm", name="network")


@pytest.mark.parametrize("chip", ["sophgo/bm1684x", "ascend/910b"])
def test_a_chip_without_a_code_generator_is_shown_by_its_twin(chip, tmp_path, run, write):
    """TVM has no Relax pipeline for the chip, and the twin has the chip's memories."""
    path = write("network.json", saved_json(chain()))
    status, out, err = run("compare", path, "--planners", "best", "--target", chip)
    assert (status, err) == (0, "")
    assert f"lowered for {chip}-llvm, the chip's twin on the CPU" in out
    _, twin, _ = run("compare", path, "--planners", "best", "--target", f"{chip}-llvm")
    found = re.compile(r"^(?:stock|best|lower bound) .*?([\d,]+)", re.M).findall
    assert found(out) == found(twin) != []
    page = f"-o {tmp_path / 'out.html'}"
    for command in (f"map {page}", "compare order", "compare --memories sram:1KiB,dram"):
        assert run(command.split()[0], path, *command.split()[1:], "--target", chip)[0] == 0


def test_chips_without_a_scalar_pipeline_are_compared_without_a_simulation():
    for twin in ("sophgo/bm1684x-llvm", "st/stm32f746-llvm"):
        compared = tvm_ext.compare(chain(), "best", target=twin)
        assert compared.memories
        assert not compared.runs
        assert "not simulated: the target describes no pipeline 'S'" in str(compared)


def test_what_is_not_planned_is_in_the_text(chip):
    compared = tvm_ext.compare(f"{chip}:Second", "best", target="acme/x-llvm")
    text = str(compared)
    assert "'z'" in text
    assert "global" in text


def test_layer_group_without_local_memory_says_so(caplog):
    with caplog.at_level(logging.WARNING, logger="tvm_ext.LayerGroup"):
        tvm_ext.relax_pipeline("llvm", layer_group=True)
    assert [r for r in caplog.messages if "does nothing" in r and "local.LMEM" in r]


# ------------------------------------------------------------------------- a chip of one's own


def test_a_file_registers_its_chip_before_the_target_is_looked_up(chip, tmp_path, capsys):
    out = str(tmp_path / "out.html")
    named = f"{chip}:First"
    assert main(["map", named, "--target", "acme/x-llvm", "-o", out]) == 0
    assert main(["compare", named, "--target", "acme/x-llvm"]) == 0
    assert main(["compare", named, "--target", "acme/x-llvm", "--planners", "best"]) == 0
    assert "capacity 1 KiB" in capsys.readouterr().out


def test_one_module_of_several_is_chosen_by_its_name(chip, capsys):
    for wrong, message in ((chip, f"{chip}:First"), (f"{chip}:Third", "First, Second")):
        assert main(["compare", wrong, "--target", "llvm"]) == 2
        assert message in capsys.readouterr().err
    for name, function in (("First", "chain"), ("Second", "parallel")):
        assert main(["compare", f"{chip}:{name}"]) == 0
        assert f" of {function}" in capsys.readouterr().out


def test_reserved_bytes_are_counted_for_all_alike(chip):
    (scope,) = tvm_ext.compare(f"{chip}:First", "all", target="acme/x-llvm").memories
    # The last of three buffers may take the place of the first.
    assert numbers(scope) == (256 + 768, 256 + 512, 256 + 512)
    assert {one.plan.peak for one in scope.plans} == {256 + 512}
    assert {one.proven for one in scope.plans} == {"lowest peak"}


def test_allocations_end_above_what_is_reserved():
    memory = tvm_ext.MemoryScope("global", reserved=((0, 8), (20, 30), (90, 99)))
    one = Problem((Buffer("a", 10, ((0, 1),)),), memory)
    assert [end_of(one, n) for n in (0, 1, 12, 13, 71, 72, 73)] == [0, 9, 20, 31, 89, 90, 100]


def test_the_stock_pass_is_not_below_the_bound_where_it_is_wrong():
    func = program("""
    def f(a: 64, b: 64):
        x, y: global 64
        view = T.decl_buffer((64,), "float32", data=x.data)
        x[i] = a[i] for i in range(64)
        y[i] = view[63 - i] for i in range(64)
        b[i] = y[i] for i in range(64)
    """)
    compared = tvm_ext.compare(func, "best")
    (scope,) = compared.memories
    assert numbers(scope)[1:] == (None, 512)
    assert "stock is left out: TVM's plan takes less than any right one of f: 256" in str(compared)
    assert "'x' and 'y' are live together" in str(compared)


# ------------------------------------------------------------------------------- wrong input


def test_one_planner_may_be_named_by_a_text():
    problem = Problem((Buffer("a", 64, ((0, 2),)), Buffer("b", 64, ((2, 3),))))
    for names in ("best", ["best"], ("best",)):
        assert [p.planner for p in tvm_ext.compare(problem, names).memories[0].plans] == ["best"]
        assert Ask(planners=names).planners == ("best",)
    many = tvm_ext.compare(problem, "best, bump").memories[0].plans
    assert [plan.planner for plan in many] == ["best", "bump"]
    for wrong in ("nosuch", ["nosuch"], "", [3], None):
        with pytest.raises(ValueError, match=r"nosuch|name a planner|expected a name"):
            tvm_ext.compare(problem, wrong)
        with pytest.raises(ValueError, match=r"nosuch|name a planner|expected a name"):
            Ask(planners=wrong)


@pytest.mark.parametrize("function", [tvm_ext.compare, tvm_ext.memory_map])
def test_no_option_is_passed_over(function):
    """What a program has itself is refused, and sizes hold for a module as for a file."""
    problem = Problem((Buffer("a", 64, ((0, 2),)),), name="p")
    sizes = InputSizes(bind={"n": 64})
    for option in ({"target": "llvm"}, {"capacity": 8}, {"alignment": 8}, {"sizes": sizes}):
        with pytest.raises(ValueError, match="p: a Problem has its memories, its target and its"):
            function(problem, "best", **option)
        with pytest.raises(ValueError, match="a Problem has its memories"):
            tvm_ext.memory_map(problem, {"own": tvm_ext.solve(problem)}, **option)
    for option, message in (
        ({"scopes": "shared"}, "p: no scope 'shared' to show; there are: global"),
        ({"functions": "f"}, "p: no function 'f' to show; there are: p"),
        ({"budget": 8}, "p: its plans are given, so a budget limits nothing"),
    ):
        with pytest.raises(ValueError, match=message):
            tvm_ext.memory_map(problem, {"own": tvm_ext.solve(problem)}, **option)
    for option in ({"capacity": 8}, {"alignment": 8}):
        with pytest.raises(ValueError, match="a program has its target's"):
            function(chain(), "best", **option)
    lowered = load_program("ascend:gelu")
    for option in ({"target": "llvm"}, {"sizes": sizes}, {"view": "groups"}):
        with pytest.raises(
            ValueError, match="ascend:gelu: is lowered for its target, at its sizes"
        ):
            function(lowered, "best", **option)
    mod = chain(tvm.tirx.Var("n", "int64"))
    found, bound = function(mod, "best", sizes=sizes), function(sizes.apply(mod), "best")
    assert [(m.name, m.plans) for m in found.memories] == [
        (m.name, m.plans) for m in bound.memories
    ]
    two = tvm.IRModule({name: tvm.script.from_source(CHAIN) for name in ("one", "two")})
    (table,) = function(two, view="rewrite", functions="two").facts
    assert [row[0] for row in table.rows[1:]] == ["two"]


OF_MODULES = (tvm_ext.compare, tvm_ext.memory_map, tvm_ext.layer_groups)


@pytest.mark.parametrize("function", [*OF_MODULES, tvm_ext.what_fits])
@pytest.mark.parametrize(("what", "kind"), [(None, "NoneType"), (3, "int")])
def test_what_is_no_module_is_refused(function, what, kind):
    with pytest.raises(TypeError, match=rf"needs a tvm.IRModule or a PrimFunc, got {kind}"):
        function(what)


@pytest.mark.parametrize("function", [tvm_ext.find_problems, find_linear_access])
def test_what_is_no_function_is_refused(function):
    with pytest.raises(TypeError, match=r"needs a PrimFunc, such as mod\['main'\], got IRModule"):
        function(tvm.IRModule())


@pytest.mark.parametrize("function", OF_MODULES)
def test_a_module_stays_as_it_is(function):
    mod = chain()
    text = mod.script()
    function(mod, target="sophgo/bm1684x-llvm")
    assert mod.script() == text


def test_compared_planners_stand_beside_the_stock_pass_that_may_be_named(run, write):
    path = write("chain.py", CHAIN)
    status, named, _ = run("compare", path, "--planners", "stock,bump")
    assert status == 0
    assert "\nstock " in named
    assert run("compare", path, "--planners", "stock")[0] == 2
    table = write("table.csv", "id,lower,upper,size\na,0,1,x\n")
    status, _, err = run("compare", str(Path(table).parent), "--planners", "bump,stock")
    assert (status, err.count(table)) == (2, 1)
