# SPDX-License-Identifier: Apache-2.0
"""Where buffers stand in a function's text, held against the text itself."""

from __future__ import annotations

import math
import re

import corpus
import pytest
import tvm
from program_text import program
from sweeps import sample
from tvm import relax
from tvm_ffi import structural_equal
from written_networks import WRITTEN

import tvm_ext
from tvm_ext import workloads
from tvm_ext.lowering import split
from tvm_ext.report import Ask, MemoryView
from tvm_ext.report.readers.rewrites import rewrite
from tvm_ext.report.readers.statement_memories import statements

KERNELS = [f"ascend:{name}:reuse" for name in workloads.ascend_kernels()]
OPERATORS = [name for name in corpus.WORKLOADS if name not in corpus.MODELS]

# A tensor of both branches: each allocates it, or the function does in front of them.
IN_FRONT = """
@I.ir_module
class InFront:
    @T.prim_func(s_tir=True)
    def log(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        for i in range(8):
            b[i] = T.log(a[i])
    @T.prim_func(s_tir=True)
    def exp(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):
        for i in range(8):
            b[i] = T.exp(a[i])
    @R.function(pure=False)
    def main(c: R.Tensor((), "bool"), x: R.Tensor((8,), "float32")) -> R.Tensor((8,), "float32"):
        cls = InFront
        z = R.builtin.alloc_tensor(R.shape([8]), R.dtype("float32"), R.prim_value(0))
        if c:
            _ = cls.exp(x, z)
            d = x
        else:
            _1 = cls.log(x, z)
            d = x
        out = R.builtin.alloc_tensor(R.shape([8]), R.dtype("float32"), R.prim_value(0))
        _2 = cls.log(z, out)
        return out
"""


def maps_of(mod: tvm.IRModule):
    (func,) = mod.functions.values()
    found = statements("main", func, Ask(), {}, lambda name: rewrite(name, func))
    return func, [one for one in found if isinstance(one, MemoryView)]


def block(lines: list[str], at: int) -> range:
    """Return the lines in which a name that is defined on line `at` means that definition."""
    depth = len(lines[at]) - len(lines[at].lstrip())
    end = at + 1
    while end < len(lines) and len(lines[end]) - len(lines[end].lstrip()) >= depth:
        end += 1
    return range(at, end)


def views(lines: list[str], where: range, name: str) -> set[str]:
    """Return a buffer's name and those of the views of it."""
    names = {name}
    for at in where:
        view = re.match(r"\s*(\w+) = T\.decl_buffer\(.*\bdata=(\w+)\.data\b", lines[at])
        if view and view[2] in names:
            names.add(view[1])
    return names


def check_lines(scope) -> None:
    """The lines that use a buffer are those that name it, and it is live on all of them."""
    lines, line_of = list(scope.axis.lines), list(scope.axis.line_of)
    assert line_of == sorted(line_of)
    assert 0 <= line_of[0] <= line_of[-1] < len(lines)
    for buffer in scope.problem.buffers:
        note = scope.notes[buffer.name]
        name = re.match(r"\s*(\w+) = T\.\w+\(", lines[note.allocated])
        assert name, lines[note.allocated]
        where = block(lines, note.allocated)
        called = views(lines, where, name[1])
        word = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, sorted(called))) + r")\b")
        declared = re.compile(r"\s*\w+ = T\.decl_buffer\(")
        named = {
            at
            for at in where
            if at != note.allocated and word.search(lines[at]) and not declared.match(lines[at])
        }
        assert named == {*note.reads, *note.writes}, (scope.owner, buffer.name)
        spans = list(scope.lines_of(buffer.name))
        for at in named:
            assert any(first <= at <= last for first, last in spans), (buffer.name, at, spans)


@pytest.mark.parametrize("what", sample(KERNELS, *KERNELS[::3]))
def test_a_kernels_buffers_are_live_on_the_lines_that_name_them(what):
    shown = tvm_ext.memory_map(what)
    assert shown.memories
    for scope in shown.memories:
        check_lines(scope)


@pytest.mark.parametrize("name", OPERATORS[::20])
def test_an_operators_buffers_are_live_on_the_lines_that_name_them(name):
    checked = 0
    for func in split(corpus.load(name)).values():
        for scope in maps_of(tvm.IRModule({"main": func}))[1]:
            check_lines(scope)
            checked += 1
    assert checked or name, "a workload without buffers is no fault"


@pytest.mark.parametrize("name", sample(OPERATORS, "densely_connected", "elements"))
def test_the_text_is_the_function(name):
    for func in split(corpus.load(name)).values():
        # Some workloads have names that no function of Python could have.
        func, scopes = maps_of(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))
        for scope in scopes[:1]:
            text = "\n".join(scope.axis.lines)
            assert "tvm_ext.statement" not in text
            read = tvm.script.from_source(text, check_well_formed=False)
            assert structural_equal(read, func.without_attr("target"), map_free_vars=True)


def test_a_loop_of_a_grid_is_on_the_line_of_the_grid():
    grid = program("""
    def grid(a: 8, b: 8):
        c: global 8
        c[i * 4 + j] = a[i * 4 + j] for i, j in T.grid(2, 4)
        b[i * 4 + j] = c[i * 4 + j] for i, j in T.grid(2, 4)
    """)
    (scope,) = tvm_ext.memory_map(tvm.IRModule({"grid": grid})).memories
    (buffer,) = scope.problem.buffers
    ((first, last),) = scope.lines_of(buffer.name)
    assert "T.grid" in scope.axis.lines[first]
    assert last == len(scope.axis.lines) - 1
    assert scope.notes[buffer.name].allocated == first - 1


def test_what_is_shared_in_the_ir_has_all_its_lines():
    # One store object twice in the function: each place has a line of its own.
    once = program("""
    def once(a: 8, b: 8):
        c: global 8
        c[i] = a[i] for i in range(8)
        b[i] = c[i] for i in range(8)
    """)
    body = once.body
    statements = list(body.seq)
    twice = once.with_body(type(body)([*statements, statements[-1]]))
    (scope,) = tvm_ext.memory_map(tvm.IRModule({"twice": twice})).memories
    (buffer,) = scope.problem.buffers
    reads = scope.notes[buffer.name].reads
    assert len(reads) == 2
    ((_, last),) = scope.lines_of(buffer.name)
    assert last >= max(reads)


def test_a_call_that_is_given_a_buffer_reads_and_writes_it():
    opaque = program("""
    def opaque(a: 8):
        c: global 8
        T.evaluate(T.call_extern("int32", "fill", c.data, 8))
        a[i] = c[i] for i in range(8)
    """)
    (scope,) = tvm_ext.memory_map(tvm.IRModule({"opaque": opaque})).memories
    (buffer,) = scope.problem.buffers
    note = scope.notes[buffer.name]
    (call,) = [at for at, line in enumerate(scope.axis.lines) if "call_extern" in line]
    assert call in note.reads
    assert call in note.writes


def test_the_bindings_of_a_network_are_its_lines():
    (scope,) = tvm_ext.memory_map(WRITTEN["resnet18"].build(), target="llvm").memories
    lines = scope.axis.lines
    for buffer in scope.problem.buffers:
        note = scope.notes[buffer.name]
        name = re.sub(r"\W", "_", buffer.name)  # As the text has it.
        assert re.match(rf"\s*{name}: R\.Tensor", lines[note.allocated])
        (made,) = note.writes
        assert re.fullmatch(r"float32 \d+(×\d+)*", note.type)
        elements = math.prod(map(int, note.type.removeprefix("float32 ").split("×")))
        assert 4 * elements == buffer.size
        assert note.what == f"made by {lines[made].strip().partition('(')[0]}"
        assert lines[made].rstrip().endswith(f"{name})")
        ((first, last),) = scope.lines_of(buffer.name)
        assert first <= made <= last
        for line in note.reads:
            assert first <= line <= last


def test_a_tensor_is_read_where_what_it_is_reshaped_to_is_read():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            flat = builder.emit(relax.op.reshape(builder.emit(relax.op.cumsum(x, 1), "a"), (32,)))
            out = builder.emit_output(relax.op.cumsum(builder.emit(relax.op.cumsum(flat, 0)), 0))
        builder.emit_func_output(out)
    (scope,) = tvm_ext.memory_map(builder.get()).memories
    (read,) = scope.notes["a"].reads
    assert "cumsum" in scope.axis.lines[read]


def test_a_tensor_of_two_branches_is_written_in_both_and_has_the_line_that_allocates_it():
    (scope,) = tvm_ext.memory_map(tvm.script.from_source(IN_FRONT), target="llvm").memories
    lines, note = scope.axis.lines, scope.notes["exp"]  # The kernel that writes it first.
    assert re.match(r"\s*exp: .* = R\.builtin\.alloc_tensor", lines[note.allocated])
    assert [re.search(r"(exp|log)\(", lines[at])[1] for at in note.writes] == ["exp", "log"]
    (read,) = note.reads
    assert note.allocated < note.writes[0] < note.writes[1] < read
