# SPDX-License-Identifier: Apache-2.0
"""Tensors over banks: never more bytes moved than by ``banked_greedy``, and the same results."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("executorch", reason="ExecuTorch is not installed")

from executorch.exir.banked_memory_planning import (  # noqa: E402
    Bank,
    BankedGreedy,
    BankPlacementError,
    TargetMemoryMap,
    banked_memory_planning_pass,
)
from executorch.exir.memory_planning import Verifier  # noqa: E402
from executorch.exir.tensor import TensorSpec  # noqa: E402
from executorch_models import arena_bytes, exported, runs, written  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.fx import Graph, GraphModule  # noqa: E402

from tvm_ext.hosts.executorch import SpecPlanner, memory_planning_pass  # noqa: E402


def _banks(fast: int, **options: int) -> TargetMemoryMap:
    return TargetMemoryMap([Bank("sram", fast, 2, **options), Bank("dram", 1 << 24, 1)])


@pytest.mark.parametrize("fast", [2048, 8192])
@pytest.mark.parametrize("name", ["residual", "views", "state"])
def test_bits_are_those_of_banked_greedy(name: str, fast: int, tmp_path: Path) -> None:
    program, (_, inputs, _) = exported(name)
    target = _banks(fast)
    written(program, banked_memory_planning_pass(target), tmp_path / "stock.pte")
    made = written(program, memory_planning_pass(banks=target), tmp_path / "ours.pte")
    assert arena_bytes(made)[2] <= fast
    calls = [inputs, tuple(x - 1 for x in inputs)]
    for one, two in zip(
        runs(tmp_path / "stock.pte", *calls), runs(tmp_path / "ours.pte", *calls), strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@settings(deadline=None, max_examples=60, print_blob=True)
@given(st.data())
def test_never_more_in_slow_memory_than_banked_greedy(data: st.DataObject) -> None:
    """Each tensor counts once here: the graph has no nodes that touch it."""
    graph = Graph()
    graph.output(())
    module = GraphModule({}, graph)
    specs = []
    for _ in range(data.draw(st.integers(1, 9))):
        spec = TensorSpec(torch.uint8, torch.Size([data.draw(st.integers(0, 300))]))
        first = data.draw(st.integers(0, 8))
        spec.lifetime = [first, data.draw(st.integers(first, 9))]
        spec.mem_id = data.draw(st.sampled_from([None, None, None, 1, 2, 5]))
        specs.append(spec)
    target = _banks(data.draw(st.sampled_from([64, 320, 640])), alignment=32)
    padding = data.draw(st.sampled_from([0, 64]))

    def planned(algorithm: object) -> object:
        try:
            return algorithm(16, specs, module, None, padding)
        except BankPlacementError:
            return None

    stock, ours = planned(BankedGreedy(target)), planned(SpecPlanner(banks=target))
    if ours is None:
        assert stock is None
        return
    for spec, result in ours.spec_dict.items():
        assert spec.mem_id in (None, result.mem_id)
    for spec, result in ours.spec_dict.items():
        spec.mem_id, spec.mem_offset, spec.mem_obj_id = (
            result.mem_id,
            result.mem_offset,
            result.mem_obj_id,
        )
    for place, one in enumerate(specs):
        for two in specs[place + 1 :]:
            if Verifier.storage_overlap(one, two):
                assert not Verifier.lifetime_overlap(one, two)
    assert ours.bufsizes[2] <= target.bank(2).size

    def slow(result: object) -> int:
        return sum(s.nbytes() + -s.nbytes() % 16 for s in specs if result.spec_dict[s].mem_id == 1)

    assert stock is None or slow(ours) <= slow(stock)


def test_what_does_not_fit_says_what_lacks() -> None:
    graph = Graph()
    graph.output(())
    spec = TensorSpec(torch.uint8, torch.Size([4096]))
    spec.lifetime = [0, 1]
    target = TargetMemoryMap([Bank("sram", 1024, 1)])
    with pytest.raises(BankPlacementError, match=r"'tensor 0' of 4096 bytes .* 'sram' has 1024"):
        SpecPlanner(banks=target)(16, [spec], GraphModule({}, graph))


def test_options_that_banks_do_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="places tensors at offsets"):
        memory_planning_pass(allow_overlapping_allocations=False)
    with pytest.raises(ValueError, match="planned in one way, got the planner 'first_fit'"):
        memory_planning_pass("first_fit", banks=_banks(1024))
    with pytest.raises(ValueError, match="share_mutable_buffers"):
        memory_planning_pass(banks=_banks(1024), share_mutable_buffers=True)
