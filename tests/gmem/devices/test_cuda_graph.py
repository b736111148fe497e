# SPDX-License-Identifier: Apache-2.0
"""`RewriteCUDAGraph` keeps storages from call to call, and captures what touches nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from cuda_graph_runs import GraphMachine
from gpu_counts import GRAPHS, captured, rewritten
from measured_memory import allocated_at
from relax_programs import CONDITIONS, SIZES, inputs_of, parse, relax_sources
from relax_runs import STOCK, build, lower, lower_source, planned, run
from runtime_shapes import RUNTIME_SHAPES
from sweeps import swept
from tvm import relax

from passes.gmem.options import GMEMOptions
from passes.gmem.relax_functions import plan_gmem
from passes.gmem.serving import served_memory
from tvm_ext.transform import GMEMAllocate

OURS = GMEMAllocate(target={"kind": "cuda", "arch": "sm_61"})

HINT = "relax.rewrite_cuda_graph.capture_symbolic_vars"


def lowered_network(name: str, bounded: bool) -> tvm.IRModule:
    mod = RUNTIME_SHAPES[name].build()
    sizes = RUNTIME_SHAPES[name].sizes
    for variable in mod.get_global_vars() if bounded else ():
        if isinstance(mod[variable], relax.Function):
            attrs = {"tir_var_upper_bound": sizes, HINT: list(sizes)}
            mod[variable] = mod[variable].with_attrs(attrs)
    return lower(mod)


CASES = [
    ("translation", False),
    ("gpt2", False),
    ("gpt2_cache", True),
    ("vit_batch", True),
    ("depthwise_batch", True),
    ("translation_sequence", True),
    ("unet_image", True),
    ("gpt2_sequence", False),
    ("translation_sequence", False),
]
QUICK = [("translation", False), ("gpt2_cache", True), ("depthwise_batch", True)]


@pytest.mark.parametrize(
    ("name", "bounded"),
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_networks_are_captured_as_under_the_stock_plan(name: str, bounded: bool):
    lowered = lowered_network(name, bounded)
    stock, ours = (captured(rewritten(lowered, plan)) for plan in (STOCK, OURS))
    assert ours.launches == stock.launches
    assert ours.kernels == stock.kernels > 0
    assert ours.graphs == stock.graphs
    assert ours.kept <= stock.kept
    for function, mine in ours.run.items():
        assert mine.nbytes + mine.left_bytes <= stock.run[function].nbytes + (
            stock.run[function].left_bytes
        )
    if not bounded:
        both = [rewritten(lowered, plan) for plan in (STOCK, OURS)]
        for function in RUNTIME_SHAPES[name].calls:
            for scale in (1, 3):
                sizes = {dim: scale * n for dim, n in RUNTIME_SHAPES[name].sizes.items()}
                theirs, mine = (allocated_at(mod[function], sizes) for mod in both)
                assert mine <= theirs


def test_without_the_option_nothing_changes():
    lowered = lowered_network("translation", False)
    before = planned(lowered, OURS)
    with tvm.transform.PassContext(config=dict.fromkeys(GRAPHS, False)):
        assert planned(lowered, OURS).script() == before.script()
    with tvm.transform.PassContext(config=GRAPHS):
        assert planned(lowered, OURS).script() != before.script()


# ------------------------------------------------------------------------------- replayed on a CPU

CHAIN = """
    @R.function(pure=False)
    def main(x: R.Tensor((64, 64), "float32")):
        a = R.nn.relu(x)
        b = R.negative(a)
        c = R.concat((b, a), axis=0)
        d = R.exp(c)
        e = R.negative(d)
        f = R.sum(e, axis=[0])
"""

CALLS = "a function that calls another"

PROGRAMS = {
    "a chain": CHAIN + "        return f\n",
    "a tuple": CHAIN + "        return (f, (d, e))\n",
    "a large result": CHAIN + "        g = R.concat((e, e), axis=0)\n        return g\n",
    "a reshape": CHAIN + "        g = R.reshape(e, (64, 128))\n        return g\n",
    "a reshape and what it is of": CHAIN
    + "        g = R.reshape(e, (64, 128))\n        h = R.abs(d)\n        return (g, e, h)\n",
    "a view": CHAIN
    + '        g = R.memory.view(e, R.shape([8192]), R.dtype("float32"), 0)\n        return g\n',
    "a workspace": CHAIN
    + """        w = R.call_dps_packed("test.gmem.double", a, out_ty=R.Tensor((64, 64), "float32"))
        g = R.concat((w, e), axis=0)
        h = R.nn.relu(g)
        return h
""",
    "a type that is stated": CHAIN
    + """        g = R.match_cast(e, R.Tensor((128, 64), "float32"))
        h = R.abs(g)
        return h
""",
    "branches": CHAIN
    + """        m = R.max(f)
        q = R.greater(m, R.const(-70.0, "float32"))
        if q:
            g = R.abs(c)
            h = R.nn.relu(g)
            r = R.add(h, e)
        else:
            k = R.exp(e)
            r = R.add(k, e)
        s = R.negative(r)
        t = R.add(s, d)
        return t
""",
    CALLS: """
    @R.function(private=True, pure=False)
    def helper(h: R.Tensor((64, 64), "float32")) -> R.Tensor((64, 64), "float32"):
        a = R.exp(h)
        b = R.negative(a)
        c = R.abs(b)
        d = R.add(c, a)
        return d

    @R.function(pure=False)
    def main(x: R.Tensor((64, 64), "float32")):
        cls = Module
        a = R.exp(x)
        b = R.negative(a)
        c = R.exp(b)
        g = cls.helper(x)
        k = R.add(R.add(c, g), b)
        return k
""",
}


COMPARABLE = [name for name in PROGRAMS if name not in ("a type that is stated", CALLS)]
"""Stock's own plan of the others does not build, or is wrong."""


def source(body: str) -> str:
    return f"@I.ir_module\nclass Module:\n{body}"


def function_name(program: str) -> str:
    return program.replace(" ", "_")


@pytest.fixture(scope="module")
def together() -> tuple[GraphMachine, relax.VirtualMachine]:
    """All programs in one module: what is kept is kept for all of them."""
    bodies = [body.replace("def main(", f"def {function_name(n)}(") for n, body in PROGRAMS.items()]
    lowered = lower(parse(source("\n".join(bodies))), fuse=False)
    return GraphMachine(lowered, OURS), build(lowered, None)


@pytest.mark.parametrize("name", PROGRAMS)
def test_captured_programs_compute_the_same_again_and_again(together, name: str):
    graphs, _ = together
    rng = np.random.default_rng(0)
    before, kept = graphs.replays, []
    for scale in (1, 1, 4, 0.1, 4):
        x = scale * rng.standard_normal((64, 64), dtype="float32")
        mine, theirs = (run_one(machine, function_name(name), [x]) for machine in together)
        kept += zip(mine, theirs, strict=True)
        for one, other in kept:
            np.testing.assert_array_equal(one, other)
    assert graphs.replays > before


def run_one(machine: GraphMachine | relax.VirtualMachine, name: str, arrays: list[np.ndarray]):
    if isinstance(machine, GraphMachine):
        return machine.run(name, arrays)
    return run(machine, name, arrays)


@pytest.mark.parametrize("name", COMPARABLE)
def test_programs_are_captured_as_under_the_stock_plan(name: str):
    lowered = lower_source(source(PROGRAMS[name]))
    stock, ours = (captured(rewritten(lowered, plan)) for plan in (STOCK, OURS))
    assert ours.kernels == stock.kernels
    assert ours.graphs == stock.graphs
    nbytes = [
        counted.kept + counted.run["main"].nbytes + counted.run["main"].left_bytes
        for counted in (ours, stock)
    ]
    assert nbytes[0] <= nbytes[1]


SMALL_AND_LARGE = """
    @R.function(pure=False)
    def small(x: R.Tensor((), "float32")):
        a = R.exp(x)
        b = R.negative(a)
        c = R.add(a, b)
        return c

    @R.function(pure=False)
    def large(x: R.Tensor((64,), "float32")):
        a = R.exp(x)
        b = R.negative(a)
        c = R.exp(b)
        d = R.sum(c)
        return d
"""


def test_storages_kept_for_all_functions_together_are_at_most_stocks():
    """Two slots of one function and one piece of another would be kept side by side."""
    lowered = lower_source(source(SMALL_AND_LARGE))
    stock, ours = (captured(rewritten(lowered, plan)) for plan in (STOCK, OURS))
    assert ours.kept == stock.kept == 2 * 64 * 4
    assert (ours.kernels, ours.graphs) == (stock.kernels, stock.graphs)


def check_random(program: str) -> None:
    """Run a random program with all ways through its branches, twice each."""
    check_lowered(lower_source(program))


def check_lowered(lowered: tvm.IRModule) -> None:
    graphs, plain = GraphMachine(lowered, OURS), build(lowered, None)
    for ways in (1, 2, 0, 3, 1, 2, 0, 3):
        arrays = inputs_of(ways & 1, ways & 2)
        np.testing.assert_equal(graphs.run("main", arrays), run(plain, "main", arrays))


BEHIND_A_BRANCH = {
    "a tensor from before that a branch reads": """
        a = R.exp(x2)
        b = R.sqrt(a)
        if c0:
            t = R.negative(b)
        else:
            t = R.exp(b)
        c = R.tanh(a)
        d = R.add(c, t)
        return d
""",
    "a tensor that lives in a branch alone": """
        a = R.exp(x2)
        b = R.sqrt(a)
        if c0:
            s = R.concat((x2, x2), axis=0)
            t = R.sum(s)
        else:
            s = R.concat((x2, x2), axis=0)
            t = R.max(s)
        c = R.tanh(a)
        d = R.add(R.sum(R.add(c, b)), t)
        return d
""",
}


PARAMETERS = [f'x{index}: R.Tensor((1, {size}), "float32")' for index, size in enumerate(SIZES)]
PARAMETERS += [f'{condition}: R.Tensor((), "bool")' for condition in CONDITIONS]
BEHIND_A_BRANCH_HEAD = f"    @R.function(pure=False)\n    def main({', '.join(PARAMETERS)}):"


@pytest.mark.parametrize("name", BEHIND_A_BRANCH)
def test_kernels_behind_a_branch_may_be_launched_before_it(name: str):
    """`RewriteCUDAGraph` goes on with a region behind an `if`."""
    program = source(BEHIND_A_BRANCH_HEAD + BEHIND_A_BRANCH[name])
    lowered = lower_source(program)
    stock, ours = (captured(rewritten(lowered, plan)) for plan in (STOCK, OURS))
    assert (ours.kernels, ours.graphs) == (stock.kernels, stock.graphs)
    check_random(program)


UP_TO = """
    @R.function(pure=False)
    def main(x: R.Tensor((64, 64), "float32"), y: R.Tensor(("n",), "float32"), c: {bool}):
        a = R.exp(x)
        u = R.exp(y)
        if c:
            t = R.sum(R.concat((x, x), axis=0))
        else:
            t = R.max(R.concat((x, x), axis=0))
        s = R.sum({read})
        r = R.add(R.tanh(a), s)
        return R.sum(R.add(r, t), axis=[0])
"""


@pytest.mark.parametrize(("read", "is_captured"), [("a", True), ("x", False), ("u", False)])
def test_a_kernel_that_no_graph_captures_ends_what_is_launched_early(read: str, is_captured: bool):
    program = UP_TO.format(read=read, bool='R.Tensor((), "bool")')
    with tvm.transform.PassContext(config=GRAPHS):
        (found,) = plan_gmem(lower_source(source(program)))
    ((_, (_, end)),) = found.memory.branches.values()
    uses = found.memory.main.uses
    inside = [buffer for buffer in found.problem.buffers if uses[buffer.name].path]
    assert inside
    assert any(buffer.live[-1][1] > end for buffer in inside) == is_captured


def test_kernels_of_the_next_block_may_be_launched_before_a_branch():
    """TVM joins blocks that follow one another when it rebuilds a function."""
    program = """
        a = R.exp(x2)
        b = R.negative(a)
        if c0:
            t = R.add(R.negative(R.exp(b)), b)
        else:
            t = R.abs(b)
        c = R.exp(R.negative(R.tanh(a)))
        d = R.add(c, t)
        return d
"""
    lowered = lower_source(source(BEHIND_A_BRANCH_HEAD + program))
    func = lowered["main"]
    (block,) = func.body.blocks
    behind = next(at for at, b in enumerate(block.bindings) if isinstance(b.value, relax.If)) + 1
    parts = block.bindings[:behind], block.bindings[behind:]
    body = relax.SeqExpr([relax.BindingBlock(part) for part in parts], func.body.body)
    relax.expr._update_type(body, func.body.ty)
    lowered[lowered.get_global_var("main")] = relax.Function(
        func.params, body, func.ret_ty, func.is_pure, func.attrs
    )
    assert len(lowered["main"].body.blocks) == 2
    check_lowered(lowered)


test_random_programs_compute_the_same_again_and_again = swept(1, 300, relax_sources(keeps=False))(
    check_random
)


BOUNDED = """
    @R.function(pure=False)
    def main(x: R.Tensor(("n", 64), "float32")):
        R.func_attr({"tir_var_upper_bound": {"n": 8}, "tir_var_lower_bound": {"n": 2},
                     "relax.rewrite_cuda_graph.capture_symbolic_vars": ["n"]})
        a = R.nn.relu(x)
        b = R.negative(a)
        c = R.concat((b, a), axis=0)
        d = R.exp(c)
        e = R.negative(d)
        f = R.sum(e, axis=[0])
        return f
"""


def test_sizes_that_are_captured_are_within_their_bounds():
    lowered = lower_source(source(BOUNDED))
    graphs, plain = GraphMachine(lowered, OURS), build(lowered, None)
    rng = np.random.default_rng(0)
    for rows in (3, 8, 3, 2, 8, 5):
        x = rng.standard_normal((rows, 64), dtype="float32")
        mine, theirs = graphs.run("main", [x]), run(plain, "main", [x])
        np.testing.assert_array_equal(mine[0], theirs[0])
    assert graphs.replays
    for rows, fault in ((9, "n is above 8"), (1, "n is below 2")):
        with pytest.raises(RuntimeError, match=rf"function 'main': {fault}"):
            graphs.run("main", [np.zeros((rows, 64), "float32")])
    x = np.ones((8, 64), "float32")
    np.testing.assert_array_equal(graphs.run("main", [x])[0], run(plain, "main", [x])[0])


def test_sizes_that_are_not_known_are_planned_as_without_graphs():
    """They are not kept from call to call, also where they stand in what a caller gets."""
    with tvm.transform.PassContext(config=GRAPHS):
        found, branched = (
            plan_gmem(lower_source(source(body.replace("(64, 64)", '("n", 64)'))))[0]
            for body in (CHAIN + "        return (f, e)\n", PROGRAMS["branches"])
        )
    main, sized = found.memory.groups
    assert (len(main.alone), len(sized.returned), len(sized.problem.buffers)) == (1, 1, 4)
    sized = branched.memory.groups[1]
    assert sized.alone
    assert not any(sized.uses[one.name].is_result for one in sized.alone)
    assert "CUDA graphs keep storages of their own" in str(served_memory([found], GMEMOptions()))


@pytest.mark.parametrize(
    "line",
    [
        'h = R.call_packed("test.gmem.keep", b, ty_args=R.Tensor((64, 64), "float32"))',
        'h = R.match_cast(R.call_packed("test.gmem.keep", b), R.Tensor((64, 64), "float32"))',
    ],
)
def test_what_the_stock_pass_does_not_judge_is_planned(line: str):
    with tvm.transform.PassContext(config=GRAPHS):
        (found,) = plan_gmem(lower_source(source(f"{CHAIN}        {line}\n        return f\n")))
    assert any(piece.offsets for pieces in found.placement for piece in pieces)


def test_bounds_are_checked_without_python():
    lowered = lower_source(source(BOUNDED))
    text = planned(lowered, OURS)["main"].script()
    assert "relax.run" not in text
    assert "vm.builtin.match_shape" in text
