# SPDX-License-Identifier: Apache-2.0
"""Programs whose memory our pass has planned, held against ``greedy``'s and run."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("executorch", reason="ExecuTorch is not installed")

from executorch.exir.memory_planning import Verifier, greedy  # noqa: E402
from executorch.exir.passes import MemoryPlanningPass  # noqa: E402
from executorch.exir.tensor import TensorSpec  # noqa: E402
from executorch_models import MODELS, arena_bytes, exported, runs, written  # noqa: E402
from hypothesis import given, note, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.fx import Graph, GraphModule  # noqa: E402

from passes.planning import Buffer, Problem, lower_bound  # noqa: E402
from tvm_ext.hosts.executorch import SpecPlanner, memory_planning_pass  # noqa: E402


@pytest.mark.parametrize("planned", [{}, {"alloc_graph_input": False, "alloc_graph_output": False}])
@pytest.mark.parametrize("name", MODELS)
def test_bits_are_those_of_greedy(name: str, planned: dict[str, bool], tmp_path: Path) -> None:
    program, (module, inputs, _) = exported(name)
    stock = written(program, MemoryPlanningPass(**planned), tmp_path / "stock.pte")
    ours = written(program, memory_planning_pass(**planned), tmp_path / "ours.pte")
    assert all(a <= b for a, b in zip(arena_bytes(ours), arena_bytes(stock), strict=True))
    other = tuple(x if x.dtype == torch.bool else x * 2 - 1 for x in inputs)
    calls = [inputs, other, inputs]
    if name == "branches":
        calls.append((torch.tensor(False), inputs[1]))
    expected = runs(tmp_path / "stock.pte", *calls)
    got = runs(tmp_path / "ours.pte", *calls)
    for one, two in zip(expected, got, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    reference = module(*inputs)
    reference = reference if isinstance(reference, tuple) else (reference,)
    for result, wanted in zip(got[0], reference, strict=True):
        if name != "state":  # Whose state the reference has changed since.
            torch.testing.assert_close(result, wanted)


@st.composite
def spec_sets(draw: st.DrawFn) -> list[TensorSpec]:
    """Draw tensors with lifetimes, some in an arena that is chosen, some views of another one."""
    specs: list[TensorSpec] = []
    for _ in range(draw(st.integers(1, 12))):
        spec = TensorSpec(torch.uint8, torch.Size([draw(st.integers(0, 400))]))
        first = draw(st.integers(0, 10))
        spec.lifetime = [first, draw(st.integers(first, 12))]
        spec.mem_id = draw(st.sampled_from([None, None, 1, 3]))
        specs.append(spec)
    owners = [spec for spec in specs if spec.allocated_memory >= 128]
    for base in owners[: draw(st.integers(0, 2))]:
        view = TensorSpec(torch.uint8, torch.Size([draw(st.integers(1, 16))]))
        view.lifetime = [base.lifetime[0], draw(st.integers(base.lifetime[0], 14))]
        view.storage_base, view.storage_base_offset = base, 64
        specs.append(view)
    return specs


@settings(deadline=None, max_examples=100, print_blob=True)
@given(spec_sets(), st.sampled_from([16, 64]), st.sampled_from([0, 64]), st.integers(0, 3))
def test_what_is_live_together_is_apart(
    specs: list[TensorSpec], alignment: int, padding: int, submodule: int
) -> None:
    """Checked by ExecuTorch's own rule, and never above ``greedy``, which is at best the bound."""
    graph = Graph()
    graph.output(())
    module = GraphModule({}, graph)
    if submodule:
        module.input_mem_buffer_sizes = [0, 64 * submodule]
    for spec in specs:  # As ExecuTorch does before it calls an algorithm.
        if spec.storage_base is not None:
            base = spec.storage_base
            base.lifetime[1] = max(base.lifetime[1], spec.lifetime[1])
    spec_copies = list(specs)
    stock = greedy(alignment, spec_copies, module, None, padding)
    ours = SpecPlanner()(alignment, specs, module, None, padding)
    note(f"greedy {stock.bufsizes}, ours {ours.bufsizes}")
    assert set(ours.spec_dict) == set(specs)
    for spec, result in ours.spec_dict.items():
        spec.mem_id, spec.mem_obj_id, spec.mem_offset = (
            result.mem_id,
            result.mem_obj_id,
            result.mem_offset,
        )
        floor = 64 * submodule if result.mem_id == 1 else 0
        assert result.mem_offset % alignment == 0
        assert not spec.allocated_memory or result.mem_offset >= floor
        end = result.mem_offset + spec.allocated_memory + padding
        assert end <= ours.bufsizes[result.mem_id] or not spec.allocated_memory
    for place, one in enumerate(specs):
        for two in specs[place + 1 :]:
            if Verifier.storage_overlap(one, two):
                assert one.mem_obj_id == two.mem_obj_id
                related = one.storage_base is two or two.storage_base is one
                assert related or not Verifier.lifetime_overlap(one, two)
    for arena, size in enumerate(stock.bufsizes):
        floor = 64 * submodule if arena == 1 else 0
        assert ours.bufsizes[arena] <= max(size, floor)
        own = [s for s in specs if s.storage_base is None and s.mem_id == arena]
        live = {s: (s.lifetime[0], s.lifetime[1] + 1) for s in own}
        if own and not floor:
            buffers = (Buffer(str(i), s.allocated_memory, (live[s],)) for i, s in enumerate(own))
            assert ours.bufsizes[arena] - padding >= lower_bound(Problem(tuple(buffers)))


@pytest.mark.parametrize(
    ("change", "planned", "message"),
    [
        (lambda base, view: None, slice(1, 2), "'tensor 0': its storage_base is not among the pl"),
        (lambda base, view: setattr(base, "storage_base", view), slice(2), "circular"),
        (
            lambda base, view: setattr(view, "storage_base_offset", 16),
            slice(2),
            "its 64 bytes end after the 64 bytes",
        ),
        (lambda base, view: setattr(base, "lifetime", [None, None]), slice(1), "no lifetime"),
    ],
)
def test_tensors_that_make_no_sense_are_refused(change, planned: slice, message: str) -> None:
    graph = Graph()
    graph.output(())
    base, view = (TensorSpec(torch.uint8, torch.Size([64])) for _ in range(2))
    base.lifetime, view.lifetime, view.storage_base = [0, 1], [0, 1], base
    change(base, view)
    with pytest.raises(ValueError, match=message):
        SpecPlanner()(16, [base, view][planned], GraphModule({}, graph))
