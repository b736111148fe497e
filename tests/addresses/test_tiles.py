# SPDX-License-Identifier: Apache-2.0
"""Addresses of tiles of a Trainium core: replayed, bounded, built and refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import pytest
import tvm
from address_runs import addresses
from hypothesis import given, note, settings
from program_text import program
from tile_kernels import (
    PARTITIONS,
    TARGET,
    TileReplay,
    indented,
    instruction,
    kernel,
    kernels,
    steps,
    tile,
)
from tvm.backend.trn.transform import LowerTIRx, TrnNaiveAllocator, TrnPrivateBufferAlloc
from tvm.ir import IRModule, TensorLoad
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx import Add, AllocBuffer, PrimFunc
from tvm.tirx.layout import F, P, S, TileLayout

from passes.ir.structural import nodes_in
from target_hw.memory import MemoryHierarchy, MemoryScope
from tvm_ext import compare, memory_map
from tvm_ext.transform import PlanAddresses

TARGETED = f'"num_inputs": 1, "target": T.target("{TARGET}")'


def planned(func: PrimFunc, **options: object) -> PrimFunc:
    return PlanAddresses(**options)(IRModule({"main": func}))["main"]


def end_of(func: PrimFunc, scope: str = "trn.sbuf") -> int:
    """Return where the tiles of a memory end, in bytes of a partition."""
    ends = [0]
    for op in nodes_in(func.body, AllocBuffer):
        if op.buffer.ty.storage_scope == scope:
            *bank, address = [int(part) for part in op.buffer.ty.allocated_addr]
            start = address + 2048 * sum(bank)
            ends.append(start + 4 * int(op.buffer.ty.shape[-1]))
    return max(ends)


def chain(length: int, columns: int = 64) -> list[str]:
    names = [f"t{k}" for k in range(length)]
    roots = "; ".join(f"sqrt {two} {one}" for one, two in pairwise(names))
    tiles = [tile(name, columns) for name in names]
    return [*tiles, *steps(f"load t0; {roots}; store {names[-1]}", columns)]


def test_a_chain_takes_two_tiles():
    func = kernel(chain(13, 16))
    naive = TrnNaiveAllocator()(IRModule({"main": func}))["main"]
    assert end_of(naive) == 13 * 64
    assert end_of(planned(func)) == 2 * 64
    assert not TileReplay(planned(func)).wrong


@settings(max_examples=4)
@given(kernels())
def test_no_element_is_overwritten_while_it_is_read(func: PrimFunc):
    note(func.script())
    ours = planned(func)
    assert TileReplay(ours).wrong == []
    naive = TrnNaiveAllocator()(IRModule({"main": func}))["main"]
    assert end_of(ours) <= end_of(naive)


def test_the_replay_sees_an_overlap():
    lines = [tile(name, 16) for name in ("a", "b", "c")]
    lines += steps("load a; load b; add c a b")
    func = planned(kernel(lines))
    assert not TileReplay(func).wrong
    text = re.sub(r"allocated_addr=\d+", "allocated_addr=0", func.script())
    assert TileReplay(tvm.script.from_source(text)).wrong


@pytest.mark.parametrize(("inside", "tiles"), [(False, 3), (True, 2)])
def test_a_tile_in_front_of_a_loop_lives_through_it(inside: bool, tiles: int):
    made = [tile(name, 16) for name in ("a", "b", "c")]
    body = steps("load a; add b a a; add c b b; store c")
    loop = ["for k in range(3):", *indented([*made, *body] if inside else body)]
    func = planned(kernel(loop if inside else [*made, *loop]))
    assert end_of(func) == tiles * 64
    assert not TileReplay(func).wrong


CARRIED = {
    "filled in the first round": ["if k == 0:", *indented(steps("load t"))],
    "written in part": steps("load t", 8),
    "added to": steps("add t t t"),
    "filled by a loop that may have no rounds": ["for m in range(k):", *indented(steps("load t"))],
    "read under a condition first": ["if k == 1:", *indented(steps("store t")), *steps("load t")],
    "filled through another name in part": [
        'v = T.decl_buffer((4, 8), "float32", data=t.data, scope="trn.sbuf")',
        *steps("load v", 8),
    ],
}


@pytest.mark.parametrize("first", CARRIED.values(), ids=CARRIED)
def test_a_tile_in_a_loop_is_kept_unless_each_round_fills_it(first: Sequence[str]):
    """Its address stays, so that what one round leaves is there in the next."""
    body = [tile("t", 16), tile("a", 16), tile("b", 16), *first]
    body += steps("store t; load a; sqrt b a; store b")
    func = planned(kernel(["for k in range(3):", *indented(body)]))
    assert not TileReplay(func).wrong
    starts = addresses(func)
    assert abs(starts["t"][0] - starts["a"][0]) >= 64
    assert abs(starts["t"][0] - starts["b"][0]) >= 64
    assert end_of(func) == 3 * 64


@pytest.mark.parametrize("scalar", ["", "if k == 0:"])
def test_a_tile_that_each_round_fills_shares_with_what_follows(scalar: str):
    body = [tile("t", 16), tile("a", 16), *steps("zero t")]
    body += steps("store t; load a; store a")
    lines = [scalar, *indented(body)] if scalar else body
    func = planned(kernel(["for k in range(3):", *indented(lines)]))
    assert end_of(func) == 64
    assert not TileReplay(func).wrong


def test_tiles_of_psum_have_banks_and_do_not_straddle_them():
    lines = [tile(f"p{k}", 260, "trn.psum") for k in range(2)]
    for k in range(2):
        with_unit = instruction(f"memset(p{k}[0, i, j], T.float32(0.0))", 260)
        lines += with_unit
    lines += [tile("out", 260)]
    for k in range(2):
        lines += instruction(f"tensor_copy(out[i, j], p{k}[0, i, j])", 260)
    func = planned(kernel([*lines, *steps("store out", 64)]))
    assert sorted(addresses(func).values()) == [(0,), (0, 0), (1, 0)]
    assert not TileReplay(func).wrong


@pytest.mark.parametrize(
    "pointer", ["p = a.data", "q = a.data; p = q", "v0 = a.view(64); p = v0.data"]
)
def test_a_tile_lives_as_long_as_pointers_to_it_are_used(pointer: str):
    lines = [tile("a", 16), tile("b", 16), *pointer.split("; ")]
    lines += ['v = T.decl_buffer((4, 16), "float32", data=p, scope="trn.sbuf")']
    lines += steps("load a; load b; store v; store b")
    func = planned(kernel(lines))
    assert not TileReplay(func).wrong
    assert end_of(func) == 2 * 64


def primitives(lines: Sequence[str], layout: TileLayout) -> PrimFunc:
    """Parse a kernel of tile primitives on tiles ``a`` to ``d`` of 128 x 128 numbers.

    Tiles ``a`` and ``b`` have a layout; the others have one row in each partition.
    """
    head = [
        "@T.prim_func",
        'def main(A: T.Buffer((128, 128), "float32"), B: T.Buffer((128, 128), "float32")):',
        f"    T.func_attr({{{TARGETED}}})",
        "    T.device_entry()",
        *(
            f'    {name} = T.alloc_buffer((128, 128), "float32", scope="trn.sbuf", layout={given})'
            for name, given in zip("abcd", ["LAYOUT", "LAYOUT", '"PF"', '"PF"'], strict=True)
        ),
    ]
    text = "\n".join([*head, *(f"    {line}" for line in lines)])
    func = tvm.script.from_source(text, {"T": T, "Tx": Tx, "LAYOUT": layout})
    return TrnPrivateBufferAlloc()(IRModule({"main": func}))["main"]


def test_products_in_a_loop_use_the_memory_of_their_sums_in_turn():
    """TVM gives the workspace of each product all of PSUM."""
    lines = [
        "for k in range(3):",
        "    Tx.copy(a[:, :], A[:, :])",
        "    Tx.copy(b[:, :], A[:, :])",
        "    Tx.gemm(c[:, :], a[:, :], b[:, :], c[:, :])",
        "    Tx.gemm(d[:, :], a[:, :], c[:, :], d[:, :])",
        "    Tx.copy(B[:, :], d[:, :])",
    ]
    func = planned(primitives(lines, TileLayout(S[(128, 128) : (1 @ F, 1 @ P)])))
    sums = [op for op in nodes_in(func.body, AllocBuffer) if "acc_psum" in op.buffer.name]
    assert [[int(n) for n in op.buffer.ty.allocated_addr] for op in sums] == [[0, 0]] * 2


def test_a_tile_of_an_asynchronous_copy_shares_with_no_earlier_statement_of_its_loop():
    lines = [
        "for k in range(3):",
        "    Tx.copy(a[:, :], A[:, :])",
        "    Tx.copy(B[:, :], a[:, :])",
        "    Tx.copy(c[:, :], A[:, :])",
        "    Tx.copy_async(B[:, :], c[:, :])",
    ]
    func = primitives(lines, TileLayout(S[(128, 128) : (1 @ P, 1 @ F)]))
    starts = addresses(planned(func))
    assert abs(starts["a"][0] - starts["c"][0]) >= 512


def test_a_layout_that_begins_behind_its_tile_s_address_gets_the_bytes_that_it_reaches():
    """Bytes are read off the indices that TVM's own lowering of layouts writes."""
    lines = ["Tx.copy(a[:, :], A[:, :])", "Tx.copy(c[:, :], A[:, :])", "Tx.copy(b[:, :], A[:, :])"]
    lines += [f"Tx.copy(B[:, :], {name}[:, :])" for name in "abc"]
    layout = TileLayout(S[(128, 128) : (1 @ P, 1 @ F)] + 64 @ F)
    mod = IRModule({"main": planned(primitives(lines, layout))})
    func = LowerTIRx()(mod)["main"]
    reached: dict[str, set[int]] = {}
    for load in nodes_in(func.body, TensorLoad):
        kind = load.source.ty
        if kind.storage_scope != "trn.sbuf":
            continue
        column = load.indices[-1]
        shift = int(column.b) if isinstance(column, Add) else 0
        start = int(kind.allocated_addr[0]) + 4 * shift
        reached[load.source.name] = set(range(start, start + 4 * 128))
    assert set(reached) == {"a", "b", "c"}
    assert sum(map(len, reached.values())) == len(set.union(*reached.values()))


def test_memories_that_are_not_named_keep_their_addresses():
    lines = [tile("a", 16), tile("p", 16, "trn.psum"), *steps("load a")]
    lines += instruction("tensor_copy(p[0, i, j], a[i, j])", 16)
    func = kernel([*lines, *instruction("store(B[i, j], p[0, i, j])", 16)])
    given = addresses(planned(func, scopes=["trn.psum"]))
    assert {name: len(where) for name, where in given.items()} == {"a": 0, "p": 2}


def test_what_does_not_fit_the_target_is_refused_with_what_helps():
    lines = [tile("a", 32768), tile("b", 32768)]
    lines += instruction("load(a[i, j], A[i, 0])", 32768)
    lines += steps("sqrt b a", 32768)
    func = kernel([*lines, *steps("store b", 64)], TARGETED)
    with pytest.raises(ValueError, match=r"'main': scope 'trn\.sbuf' needs 262144 .* has 196608"):
        planned(func)


def test_a_tile_within_an_instruction_is_refused():
    first, *loops = steps("load a")
    func = kernel([first, *indented([tile("a", 16)]), *loops])
    with pytest.raises(
        ValueError, match=r"'main': buffer 'a' in trn\.sbuf: it is allocated within"
    ):
        planned(func)


def test_a_symbolic_tile_and_an_arena_are_refused():
    lines = [tile("a", 16), *steps("load a")]
    with pytest.raises(ValueError, match="have addresses, and no arena"):
        planned(kernel(lines), form="arena")
    grown = [tile("a", 16).replace("16", "n"), *steps("load a", 1)]
    with pytest.raises(ValueError, match=r"'a' in trn\.sbuf: its shape \[4, n\] is not constant"):
        planned(kernel(["for n in range(1, 3):", *indented(grown)]))


def test_sources_differ_in_addresses_alone():
    """Built by TVM's pipeline for Trainium and by ours."""
    columns = 64
    lines = [line.replace("(4, 64)", f"({PARTITIONS}, {columns})") for line in chain(4)]
    func = kernel(lines)
    sources = []
    for pipeline in ("trn", "tvm_ext", "tvm_ext.address"):
        built = tvm.tirx.build(IRModule({"main": func}), target=TARGET, pipeline=pipeline)
        found, left = [], [built]
        while left:
            module = left.pop()
            left += list(module.imports)
            found += [module.inspect_source()] if module.kind not in ("llvm", "ffi") else []
        sources.append("\n".join(found))
    stock, *ours = sources
    assert "base_addr=768" in stock
    for source in ours:
        assert "base_addr=768" not in source
        assert "base_addr=256" in source
        blank = [re.sub(r"base_addr=\d+", "", text) for text in (stock, source)]
        assert blank[0] == blank[1]


@pytest.mark.parametrize(
    ("target", "scope", "capacity"),
    [
        (TARGET, "trn.sbuf", 196_608),
        (TARGET, "trn.psum", 16_384),
        ("qcom/hexagon-v68", "global.vtcm", 4 << 20),
        ("nvidia/nvidia-a100", "shared", 49_152),
    ],
)
def test_targets_of_tvm_know_their_memory(target: str, scope: str, capacity: int):
    memory = MemoryHierarchy.from_target(tvm.target.Target(target))
    assert memory[scope] == MemoryScope(scope, capacity)


def test_a_target_without_limits_says_so():
    with pytest.raises(ValueError, match="carries no memory description"):
        MemoryHierarchy.from_target(tvm.target.Target("llvm"))


def test_tools_show_the_allocator_of_tvm_beside_ours():
    func = kernel(chain(5), TARGETED)
    (result,) = compare(IRModule({"main": func}), "best", target=TARGET).memories
    assert [p.plan.peak for p in result.plans] == [5 * 256, 512]
    assert result.problem.capacity == 196_608
    shown = memory_map(func, target=TARGET)
    assert [scope.scope for scope in shown.memories] == ["trn.sbuf"]


def test_vtcm_is_one_allocation_within_the_capacity_of_hexagon():
    hexagon = tvm.target.Target("qcom/hexagon-v68")

    def copied(size: int) -> IRModule:
        func = program(f"""
        def main(A: 4x64, B: 4x64):
            x, y: global.vtcm {size}
            x[i] = A[i // 64 % 4, i % 64] for i in range(1024)
            y[i] = x[1023 - i] for i in range(1024)
            B[0, i] = y[i] for i in range(64)
        """)
        mod = tvm.tirx.transform.BindTarget(hexagon)(IRModule({"main": func}))
        return tvm.tirx.transform.FlattenBuffer()(mod)

    mod = PlanAddresses(form="arena")(copied(1024))
    (arena,) = nodes_in(mod["main"].body, AllocBuffer)
    assert (arena.buffer.ty.storage_scope, int(arena.buffer.ty.shape[0])) == ("global.vtcm", 8192)
    mod = tvm.s_tir.transform.LowerVtcmAlloc()(tvm.s_tir.transform.VerifyVTCMLimit(hexagon)(mod))
    assert "nd_mem_alloc_with_scope" in mod.script()
    with pytest.raises(ValueError, match=r"global\.vtcm.* needs 8388608 .* has 4194304"):
        PlanAddresses(form="arena")(copied(1048576))
