# SPDX-License-Identifier: Apache-2.0
"""Plans for TensorFlow Lite Micro: right by its own reports, and by the bits that it computes."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flatbuffers", reason="flatbuffers is not installed")
pytest.importorskip("tflite_micro", reason="tflite-micro is not installed")

from made_models import (
    BOOL,
    FLOAT,
    INT8,
    INT16,
    INT32,
    chosen,
    new_graph,
    one_operator,
    random_model,
    schema,
)

import tvm_ext
from passes.planning import verify
from tvm_ext.__main__ import main
from tvm_ext.hosts.tflite_micro import (
    Fit,
    Model,
    arena_of,
    cmsis_nn_scratch,
    fit,
    greedy_plan,
    interpreter,
    prove,
    read_model,
    with_plan,
)
from tvm_ext.hosts.tflite_micro.arena_head import ELEMENTWISE, RESHAPING
from tvm_ext.hosts.tflite_micro.interpreter import measure, open_model, scratch_of

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("TVM_EXT_DATA", ROOT.parent / "shared" / "data")) / "tflite"
PUBLIC = sorted(path.stem for path in DATA.glob("*.tflite"))

# Of these, TensorFlow Lite Micro's own wheel lacks a kernel.
NOT_RUN = {"mobilenet_v1_0.25_128_quant", "selfie_segmentation"}


def check(found: Fit) -> None:
    """Hold each choice against the verifier, and against TensorFlow Lite Micro itself."""
    assert found.usage is not None
    assert found.stock.peak == found.usage.head
    for choice in found.choices:
        assert verify(choice.problem, choice.plan) == ()
        proof = prove(found, choice, choice.content())
        assert proof is not None
        assert proof.runs
        assert proof.after.head == choice.head
        assert proof.after.tail == found.usage.tail
    assert found.best(in_place=False, order=False).head <= found.usage.head


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run models that do not crash in this process: to fork it takes longer than all else."""
    for module in (interpreter, sys.modules[fit.__module__]):
        monkeypatch.setattr(module, "apart", lambda action, *given: action(*given))


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("seed", [*range(12), pytest.param(-1, marks=pytest.mark.slow)])
def test_random_models(seed: int) -> None:
    """Heads are those that are reported, and results are the same bits, in every choice."""
    for each in range(12, 300) if seed < 0 else [seed]:
        content = random_model(each)
        try:
            open_model(content)
        except ValueError:
            continue  # Drawn so that TensorFlow Lite Micro cannot run it
        check(fit(content, f"model {each}"))


@pytest.mark.usefixtures("together")
@pytest.mark.skipif(not PUBLIC, reason=f"{DATA} is not there; set TVM_EXT_DATA to the data folder")
@pytest.mark.parametrize("name", PUBLIC)
def test_public_models(name: str) -> None:
    content = (DATA / f"{name}.tflite").read_bytes()
    found = fit(content, name)
    if name in NOT_RUN:
        assert found.usage is None
        assert found.remark
    else:
        check(found)
    # The figures of docs/microcontrollers.md, which a prototype of others had, too.
    expected = {
        "mlperf_vww_96_int8": ((False, False), 55_296),
        "mobilenet_v1_0.25_128_quant": ((False, False), 98_304),
        "selfie_segmentation": ((True, False), 3_146_816),
        "hand_recrop": ((False, True), 1_310_720),
        "tflm_keyword_scrambled": ((False, False), 672),
    }
    if name in expected:
        (in_place, order), head = expected[name]
        assert found.best(in_place=in_place, order=order).head == head


BINARY = """
    ADD DIV EQUAL FLOOR_DIV FLOOR_MOD GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR
    MAXIMUM MINIMUM MUL NOT_EQUAL SQUARED_DIFFERENCE SUB
"""
OPERANDS = dict.fromkeys(BINARY.split(), 2) | {"SELECT_V2": 3}


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("name", sorted(ELEMENTWISE | RESHAPING))
def test_each_operator_in_place(name: str) -> None:
    """Each operator of the tables gives the same bits with its result at an operand's offset."""
    tried = 0
    for kind in (BOOL,) if name.startswith("LOGICAL") else (FLOAT, INT8, INT32):
        content = one_operator(name, kind, OPERANDS.get(name, 1), (2, 3, 5))
        try:
            open_model(content)
        except ValueError:
            continue
        found = fit(content, name)
        for choice in found.choices:
            proof = prove(found, choice, choice.content())
            if choice.in_place and proof is not None and proof.runs:
                assert choice.head < found.head
                tried += 1
    assert tried


def test_what_is_not_in_place() -> None:
    """An operand that is read later, or is a result of the model, keeps its bytes."""
    graph = new_graph()
    first = graph.input([1, 8])
    second = graph.apply("RELU", first)
    third = graph.apply("ADD", first, second)  # `second` is a result of the model
    found = fit(graph.bytes(second, graph.apply("TANH", third)), "kept")
    check(found)
    (in_place,) = (choice for choice in found.choices if choice.in_place and not choice.moved)
    names = {tuple(pair) for pair in in_place.problem.in_place}
    assert names == {("t0", "t2"), ("t2", "t3")}


def test_the_schema_reads_what_is_written() -> None:
    """TensorFlow's own reader finds the plan, and all else as it was: weights, names, metadata."""
    graph = new_graph()
    graph.model.note("of the author", np.arange(5, dtype="uint8"))
    weights = graph.tensor([1, 8], FLOAT, np.linspace(-1, 1, 8).astype("float32"))
    content = graph.bytes(graph.apply("MUL", graph.input([1, 8]), weights))
    written = with_plan(read_model(content, "model"), (0, -1, 64))
    old, new = (
        schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(bytearray(each), 0))
        for each in (content, written)
    )
    assert written.endswith(content)
    assert len(written) - len(content) <= 4 * (3 + len(new.buffers)) + 200
    assert [entry.name for entry in new.metadata] == [b"of the author", b"OfflineMemoryAllocation"]
    plan = new.buffers[new.metadata[1].buffer].data
    assert np.frombuffer(bytes(plan), "<i4").tolist() == [1, 0, 3, 0, -1, 64]
    for before, after in zip(old.buffers, new.buffers, strict=False):
        assert before.data is after.data is None or bytes(before.data) == bytes(after.data)
    for table in (old, new):
        table.metadata = table.buffers = None
    assert json.dumps(old, default=_plain) == json.dumps(new, default=_plain)


def _plain(value: object) -> object:
    return (
        value.tolist() if isinstance(value, np.ndarray) else getattr(value, "__dict__", str(value))
    )


def test_a_plan_in_the_file_is_kept_until_a_better_one_is_found(tmp_path: Path) -> None:
    """The head of today is that of the file's own plan, and a new plan takes its place."""
    content = random_model(3)
    model = read_model(content, "model")
    offsets, end = [], 0
    for tensor in model.tensors:
        offsets.append(end if tensor.in_arena else -1)
        end += -(-tensor.size // 16) * 16 if tensor.in_arena else 0
    spread = with_plan(model, offsets)
    found = fit(spread, "model")
    assert found.usage == measure(spread)
    assert found.head >= end
    check(found)
    written = found.best(in_place=False, order=False).content()
    assert len(written) == len(spread)


@pytest.mark.parametrize(
    ("plans", "head"),
    [
        ([(1, 0, 3, 0, 512, 1024, 7, 7)], 1280),  # Words after the plan
        ([(1, 0, 3, 0, 512, 1024), (1, 0, 3, 0, 512, 768)], 1024),  # The last one counts
        ([(1, 0, 2, 0, 512)], "2 offsets, and the model 3"),
        ([(1, 0, 3, 0, 128, 512)], "share bytes while they are live"),
    ],
)
def test_plans_of_others(plans: list[tuple[int, ...]], head: int | str) -> None:
    """A plan in the file is read as TensorFlow Lite Micro reads it, or refused in words."""
    graph = new_graph()
    last = graph.apply("RELU", graph.apply("RELU", graph.input([1, 64])))
    for plan in plans:
        graph.model.note("OfflineMemoryAllocation", np.array(plan, "int32"))
    if isinstance(head, str):
        with pytest.raises(ValueError, match=head):
            fit(graph.bytes(last), "model")
    else:
        found = fit(graph.bytes(last), "model")
        assert found.head == head
        check(found)


def test_a_tensor_that_is_written_twice_keeps_the_order_of_its_uses() -> None:
    graph = new_graph()
    first = graph.input([1, 64])
    second = graph.apply("RELU", first)
    third = graph.apply("ABS", second)
    graph.operator("NEG", [first], [second])  # Before ABS, less would be live
    check(fit(graph.bytes(third, second), "written twice"))


def test_a_variable_with_an_offset_keeps_its_value() -> None:
    """Its bytes are its own for the whole run, also after its last use, and never a result's."""
    graph = new_graph()
    first, kept = graph.input([1, 64]), graph.tensor([1, 64], variable=True)
    last = graph.apply("RELU", graph.apply("RELU", graph.apply("ADD", first, kept)))
    model = read_model(graph.bytes(last), "model")
    found = fit(with_plan(model, (0, 512, 256, 1024, 0)), "model")
    assert found.best(in_place=False, order=False).head == 768
    check(found)
    for choice in found.choices:
        assert all("t1" not in pair for pair in choice.problem.in_place)


def test_a_variable_of_a_later_subgraph_is_refused() -> None:
    """With a plan it would get no memory, and TensorFlow Lite Micro would crash."""
    graph = new_graph()
    condition, first = graph.input([1], BOOL), graph.input([1, 64])
    for _ in range(2):
        branch = graph.model.graph()
        kept, value = branch.tensor([1, 64], variable=True), branch.input([1, 64])
        branch.table.outputs = [branch.apply("ADD", value, kept)]
    with pytest.raises(ValueError, match="would give variable 't0' no memory"):
        fit(graph.bytes(chosen(graph, condition, first, 1, 2)), "model")


def test_resource_variables() -> None:
    """The kernel of `VAR_HANDLE` keeps the handle; reads and writes keep their order."""
    graph = new_graph()
    value, handle = graph.input([1, 64]), graph.tensor([], "RESOURCE")
    graph.operator("VAR_HANDLE", [], [handle], sharedName="state", container="")
    for _ in range(2):
        graph.operator("ASSIGN_VARIABLE", [handle, value], [])
        read = graph.tensor([1, 64])
        graph.operator("READ_VARIABLE", [handle], [read])
        value = graph.apply("ADD", read, value)
    found = fit(graph.bytes(value), "state")
    assert "t1" not in {each.name for each in found.arena.residents}
    check(found)


def test_a_damaged_file_that_is_read_ends_in_one_line() -> None:
    """TensorFlow Lite Micro reads more of the file than the planner does, and may err on it."""
    content, refused = random_model(3), 0
    for at, byte in ((735, 127), (733, 127), (803, 254), (854, 1), (995, 1)):
        damaged = content[:at] + bytes([byte]) + content[at + 1 :]
        try:
            refused += "cannot run this file" in fit(damaged, "model").remark
        except ValueError:
            refused += 1
    assert refused


def test_a_model_that_crashes_ends_in_words() -> None:
    """Where a kernel stops the process, as `PRELU` does of five dimensions, that is said."""
    graph = new_graph()
    first, second = graph.input([3, 2, 3, 4, 5]), graph.input([3, 1, 3, 4, 1])
    result = graph.apply("PRELU", first, second, shape=[3, 2, 3, 4, 5])
    found = fit(graph.bytes(result), "five dimensions")
    choice = found.best(in_place=True, order=False)
    proof = prove(found, choice, choice.content())
    assert proof is not None
    assert (proof.runs, proof.after.head) == (0, choice.head)
    assert "crashes" in proof.remark


def test_scratch_memory_of_many_operators_opens_the_model_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = new_graph()
    value = graph.input([1, 8], INT8)
    for number in range(64):
        name, operands = ("ADD_N", 3) if number == 40 else ("RELU", 1)
        value = graph.apply(name, *[value] * operands)
    opened = []
    real = interpreter.open_model
    monkeypatch.setattr(interpreter, "open_model", lambda *a: opened.append(0) or real(*a))
    assert scratch_of(read_model(graph.bytes(value), "long")).keys() == {(0, 40)}
    assert len(opened) < 20


def test_greedy_takes_the_later_of_equal_sizes_first() -> None:
    graph = new_graph()
    values = [graph.input([1, 4]) for _ in range(3)]
    model = read_model(graph.bytes(*[graph.apply("RELU", value) for value in values]), "ties")
    plan = greedy_plan(arena_of(model, {}))
    # Of six tensors of 16 bytes the last one comes first; t1 is dead when t5 is written, t0 when
    # t4 is, so that they find gaps.
    assert [plan.offsets[f"t{at}"][0] for at in range(6)] == [16, 0, 48, 32, 16, 0]


def test_scratch_memory_is_found_by_operator() -> None:
    """A sum of several operands asks for scratch memory, one of two asks for none."""
    for name, expected in (("ADD_N", {(0, 1)}), ("ADD", set())):
        graph = new_graph()
        first = graph.input([1, 8], INT8)
        result = graph.apply(name, first, graph.apply("RELU", first))
        assert scratch_of(read_model(graph.bytes(result), "sum")).keys() == expected


def test_scratch_memory_is_found_in_the_subgraphs_that_an_operator_runs() -> None:
    graph = new_graph()
    condition, first = graph.input([1], BOOL), graph.input([1, 8], INT8)
    for count in (3, 5):
        branch = graph.model.graph()
        late = branch.apply("RELU", branch.input([1, 8], INT8))
        branch.table.outputs = [branch.apply("ADD_N", *[late] * count)]
    value = chosen(graph, condition, first, 1, 2)
    content = graph.bytes(graph.apply("ADD_N", value, value))
    model = read_model(content, "branches")
    expected = {(0, 1): 16, (1, 1): 32, (2, 1): 48}
    assert scratch_of(model) == scratch_of(read_model(fitted(model), "fitted")) == expected
    check(fit(content, "branches"))


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("others", [1, 2])
def test_scratch_memory_of_a_subgraph_that_runs_twice_is_kept_between(others: int) -> None:
    graph = new_graph()
    condition, value = graph.input([1], BOOL), graph.input([1, 8], INT8)
    for _ in range(others):
        branch = graph.model.graph()
        branch.table.outputs = [branch.apply("ADD_N", *[branch.input([1, 8], INT8)] * 3)]
    for _ in range(2):
        value = chosen(graph, condition, value, 1, others)
        value = graph.apply("ADD", value, value)
    check(fit(graph.bytes(value), "twice"))


def fitted(model: Model) -> bytes:
    """Return the file of a model with a plan in it."""
    return with_plan(model, [-1] * len(model.tensors))


def test_cmsis_nn_sizes() -> None:
    """The sizes that the C sources of CMSIS-NN return, called on the same shapes."""
    graph = new_graph()
    image = graph.input([1, 16, 16, 8], INT8)
    for name, weights in (
        ("CONV_2D", [8, 3, 3, 8]),
        ("CONV_2D", [8, 1, 1, 8]),
        ("DEPTHWISE_CONV_2D", [1, 5, 5, 8]),
        ("DEPTHWISE_CONV_2D", [1, 3, 3, 8]),
    ):
        data = np.zeros(weights, "int8")
        graph.operator(name, [image, graph.tensor(weights, INT8, data)], [graph.tensor([1], INT8)])
    model = read_model(graph.bytes(2), "convolutions")
    dsp = {(0, 0): 288, (0, 1): 32, (0, 2): 400}  # 32: what one of the compilers asks for
    assert cmsis_nn_scratch(model, "dsp") == dsp
    assert cmsis_nn_scratch(model, "mve") == {(0, 0): 320, (0, 2): 12_400, (0, 3): 4_464}
    with pytest.raises(ValueError, match="dsp, mve"):
        cmsis_nn_scratch(model, "m0")


@pytest.mark.parametrize(
    ("name", "operands", "sizes"),
    [
        ("CONV_2D", [([1, 16, 16, 5], INT16), ([8, 3, 3, 5], INT8)], (180, 384)),
        ("DEPTHWISE_CONV_2D", [([1, 16, 16, 8], INT16), ([1, 3, 3, 8], INT8)], (144, 584)),
        ("AVERAGE_POOL_2D", [([1, 16, 16, 8], INT16)], (32, 0)),
        ("BATCH_MATMUL", [([1, 3, 8], INT8), ([1, 8, 5], INT8)], (0, 20)),
    ],
)
def test_cmsis_nn_sizes_of_other_kernels(
    name: str, operands: list[tuple[list[int], int]], sizes: tuple[int, int]
) -> None:
    """Sizes of wide activations, and of products, as the C sources of CMSIS-NN compute them."""
    graph = new_graph()
    tensors = [graph.input(shape, kind) for shape, kind in operands]
    result = graph.tensor([1, 3, 5], operands[0][1])
    graph.operator(name, tensors, [result])
    model = read_model(graph.bytes(result), name)
    for core, size in zip(("dsp", "mve"), sizes, strict=True):
        assert cmsis_nn_scratch(model, core) == ({(0, 0): size} if size else {})


def test_an_operator_whose_scratch_memory_is_not_known_is_refused() -> None:
    graph = new_graph()
    shape = graph.tensor([4], INT32, np.array([1, 8, 8, 4], "int32"))
    weights = graph.tensor([4, 3, 3, 8], INT8, np.zeros([4, 3, 3, 8], "int8"))
    image = graph.input([1, 4, 4, 8], INT8)
    result = graph.apply("TRANSPOSE_CONV", shape, weights, image, shape=[1, 8, 8, 4])
    with pytest.raises(ValueError, match=r"scratch memory .* TRANSPOSE_CONV \(operator 0\)"):
        cmsis_nn_scratch(read_model(graph.bytes(result), "upscaling"), "dsp")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes what wins, says what does not fit, and returns 1 then."""
    model, out, data = tmp_path / "m.tflite", tmp_path / "out.tflite", tmp_path / "out.json"
    model.write_bytes(random_model(3))
    usage = measure(model.read_bytes())
    command = ["fit", str(model), "-o", str(out), "--order", "--in-place", "--json", str(data)]
    assert main([*command, "--arena", "1MiB"]) == 0
    said = json.loads(data.read_text())
    assert said["head"] == usage.head
    assert said["measured"]["head"] == measure(out.read_bytes()).head < usage.head
    assert main([*command, "--arena", "1KiB"]) == 1
    assert "are missing" in capsys.readouterr().out
    model.write_bytes(random_model(0))
    assert main(["fit", str(model), "-o", str(out), "--order", "--in-place"]) == 0
    assert "of 2023 or later" in capsys.readouterr().out  # It has several subgraphs.
    out.unlink()
    model.write_bytes(one_operator("RELU", FLOAT, 1))
    assert main(["fit", str(model), "-o", str(out)]) == 0
    assert not out.exists()
    assert "--in-place would" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is no model"),
        (b"\0\0\0\0TFL3", "cut off or damaged"),
        ("cut", "cut off or damaged"),
        ("string", "of type string"),
        ("shape", "unknown shape"),
        ("large", "too large, of 34359738368 bytes"),
    ],
)
def test_refused(
    content: bytes | str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if isinstance(content, str):
        graph = new_graph()
        kind = "STRING" if content == "string" else FLOAT
        first = graph.input([{"shape": -1, "large": 1 << 30}.get(content, 1), 8], kind)
        graph.operator("RELU", [first], [graph.tensor([1, 8])])
        content = graph.bytes(1)[: 120 if content == "cut" else None]
    path = tmp_path / "bad.tflite"
    path.write_bytes(content)
    assert main(["fit", str(path)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert str(path) in error


def test_a_file_is_read_and_written_without_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    content = random_model(3)
    for package in ("flatbuffers", "flatbuffers.table", "tflite_micro"):
        monkeypatch.setitem(sys.modules, package, None)
    found = fit(content, "model")
    assert found.usage is None
    plan = read_model(found.choices[0].content(), "fitted").plan
    assert plan == found.choices[0].arena.plan_of(found.model, found.choices[0].plan)


def test_damaged_files_end_in_one_line() -> None:
    """A file that is cut, or has a byte changed, is refused by its name, or read."""
    content = random_model(3)
    for at in range(8, len(content), 7):
        for damaged in (content[:at], content[:at] + b"\xff" + content[at + 1 :]):
            with contextlib.suppress(ValueError):
                arena_of(read_model(damaged, "model"), {})


def test_fields_of_the_model_that_lead_outside_are_refused() -> None:
    """A plan is written into each file that is read, whichever field of ``Model`` is damaged."""
    content = random_model(3)
    (root,) = struct.unpack_from("<I", content)
    (back,) = struct.unpack_from("<i", content, root)
    ends = [0, 0]
    for at in (*range(root - back + 4, root - back + 24), *range(root + 4, root + 36)):
        damaged = content[:at] + b"\xff" + content[at + 1 :]
        try:
            model = read_model(damaged, "model")
        except ValueError:
            ends[0] += 1
        else:
            with_plan(model, [-1] * len(model.tensors))
            ends[1] += 1
    assert min(ends) > 0, "some are refused, and some are read"


def test_the_report_says_the_same(tmp_path: Path) -> None:
    """`compare` and `map` show the heads that `fit` finds, and the page has every operator."""
    path = tmp_path / "model.tflite"
    path.write_bytes(random_model(3))
    found, report = fit(path.read_bytes(), "model"), tvm_ext.compare(path, "best")
    assert [view.plan_of("best").plan.peak for view in report.memories] == [
        choice.head for choice in found.choices
    ]
    assert report.memories[0].plan_of("stock").plan.peak == found.head
    assert found.usage is not None
    assert f"{found.usage.total:,} bytes" in "".join(report.notes)
    page = tvm_ext.memory_map(path).page()
    assert all(one.name in page for one in found.model.subgraphs[0].operators)
    with pytest.raises(ValueError, match="TensorFlow Lite Micro has its memories"):
        tvm_ext.compare(path, target="llvm")


def test_a_program_of_executorch_is_told_its_own_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "model.pte"]) == 2
    assert "memory_planning_pass" in capsys.readouterr().err
