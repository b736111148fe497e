# SPDX-License-Identifier: Apache-2.0
"""Programs that ExecuTorch has written, read back: their problems and plans, and ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("executorch", reason="ExecuTorch is not installed")

from executorch.exir._serialize._program import (  # noqa: E402
    deserialize_pte_binary,
    serialize_pte_binary,
)
from executorch.exir.passes import MemoryPlanningPass  # noqa: E402
from executorch_models import MODELS, exported, runs, written  # noqa: E402

import tvm_ext  # noqa: E402
from passes.planning import solve, verify  # noqa: E402
from tvm_ext.__main__ import main  # noqa: E402
from tvm_ext.hosts.executorch import read_program  # noqa: E402
from tvm_ext.report import MemoryView  # noqa: E402


def values_of(arena: MemoryView) -> dict[str, list[int]]:
    """Return the file's values that each buffer holds: names end in a value's number."""
    also = {name: note.what.removeprefix("also ").split(", ") for name, note in arena.notes.items()}
    return {b: [int(n.split()[-1]) for n in (b, *others) if n] for b, others in also.items()}


@pytest.mark.parametrize("name", MODELS)
def test_our_plan_put_into_the_file_runs(name: str, tmp_path: Path) -> None:
    """The live ranges that are read from a file are right: with our offsets it computes the same.

    The file keeps its instructions and values; only the offsets change.
    """
    program, (_, inputs, _) = exported(name)
    before, after = tmp_path / "before.pte", tmp_path / "after.pte"
    written(program, MemoryPlanningPass(), before)
    file = deserialize_pte_binary(before.read_bytes())
    (method,) = file.program.execution_plan
    for arena in read_program(before):
        (own,) = arena.plans
        assert verify(own.problem, own.plan) == ()
        plan = solve(own.problem)
        assert plan.peak <= own.plan.peak
        for buffer, values in values_of(arena).items():
            moved = plan.offsets[buffer][0] - own.plan.offsets[buffer][0]
            for value in values:
                info = method.values[value].val.allocation_info
                info.memory_offset_low = info.memory_offset + moved
    after.write_bytes(bytes(serialize_pte_binary(file)))
    calls = [inputs, tuple(x if x.dtype == torch.bool else x - 3 for x in inputs)]
    if name == "branches":
        calls.append((torch.tensor(False), inputs[1]))
    for one, two in zip(runs(before, *calls), runs(after, *calls), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_view_lives_with_its_base(tmp_path: Path) -> None:
    """Between its base's last use and its own first one, nothing else has a view's bytes."""
    path = tmp_path / "views.pte"
    program, _ = exported("views")
    written(program, MemoryPlanningPass(), path, remove_view_copy=True)
    (arena,) = read_program(path)
    assert any(len(values) > 1 for values in values_of(arena).values())
    assert verify(arena.problem, arena.plans[0].plan) == ()


def test_commands_show_the_plan_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "residual.pte", tmp_path / "residual.html"
    program, _ = exported("residual")
    written(program, MemoryPlanningPass(), path)
    (arena,) = read_program(path)
    assert main(["map", str(path), "-o", str(page)]) == 0
    assert "convolution.out" in page.read_text()
    assert tvm_ext.memory_map(path).planners == ("stock", "best")
    assert main(["map", str(path), "-o", str(page), "--scopes", "nowhere"]) == 2
    assert "no scope 'nowhere' to show" in capsys.readouterr().err
    assert main(["compare", str(path), "--planners", "best"]) == 0
    assert f"{arena.plans[0].plan.peak:,}" in capsys.readouterr().out
    (result,) = tvm_ext.compare(path, "best").memories
    assert result.plan_of("stock").plan.peak == arena.plans[0].plan.peak


def test_executorchs_own_figure_stands_beside_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is that of the file which ExecuTorch writes when inputs and results are not planned."""
    path, planned, told = (tmp_path / name for name in ("net.pt2", "net.pte", "told.json"))
    program, _ = exported("residual")
    torch.export.save(program, str(path))
    own = MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
    written(program, own, planned)
    method = deserialize_pte_binary(planned.read_bytes()).program.execution_plan[0]
    assert main(["compare", str(path), "--executorch", "--json", str(told)]) == 0
    nbytes = json.loads(told.read_text())["executorch"]["nbytes"]
    assert nbytes == sum(method.non_const_buffer_sizes) > 0
    assert f"takes {nbytes:,} bytes" in capsys.readouterr().out
    path.write_bytes(b"not a program")
    assert main(["compare", str(path), "--executorch"]) == 2
    assert "ExecuTorch does not take it" in capsys.readouterr().err


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "none.pte"
    path.write_bytes(b"not a program")
    with pytest.raises(ValueError, match=r"none\.pte: is no program of ExecuTorch"):
        read_program(path)
    with pytest.raises(ValueError, match="no such file"):
        read_program(tmp_path / "missing.pte")
