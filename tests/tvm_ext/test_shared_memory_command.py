# SPDX-License-Identifier: Apache-2.0
"""``tvm-ext compare --shared-memory``: bytes of a kernel by each way, and the exit status."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tvm_ext.__main__ import main
from tvm_ext.comparison import views

KERNEL = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def phases(a: T.Buffer((64,), "float32"), o: T.Buffer((64,), "float32")):
    T.launch_thread("blockIdx.x", 1)
    tx = T.launch_thread("threadIdx.x", 64)
    s0 = T.alloc_buffer((64,), "float32", scope="shared")
    s1 = T.alloc_buffer((64,), "float32", scope="shared")
    s2 = T.alloc_buffer((64,), "float32", scope="shared")
    s0[tx] = a[tx]
    s1[tx] = s0[63 - tx]
    s2[tx] = s1[(tx + 7) % 64]
    o[tx] = s2[(tx * 3) % 64]
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "kernel.py"
    path.write_text(KERNEL)
    return path


def compared(program: Path, tmp_path: Path) -> tuple[int, list[dict[str, object]]]:
    told = tmp_path / "told.json"
    command = ["compare", str(program), "--target", "opencl", "--shared-memory"]
    status = main([*command, "--json", str(told)])
    return status, json.loads(told.read_text())


def test_each_way_is_told(program: Path, tmp_path: Path):
    status, ((row,)) = compared(program, tmp_path)
    assert status == 0
    assert row["taken"] == {"default": 512, "merged": 256, "ours": 512, "insert": 512}


def test_the_status_tells_that_ours_takes_more(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ways = {**views._WAYS, "default": views._WAYS["merged"]}
    monkeypatch.setattr(views, "_WAYS", ways)
    assert compared(program, tmp_path)[0] == 1


def test_a_kernel_that_is_not_lowered_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path, out = tmp_path / "kernel.py", str(tmp_path / "map.html")
    launch = 'tx = T.launch_thread("threadIdx.x", 64)'
    assert launch in KERNEL
    before, behind = KERNEL.split(f"    {launch}\n")
    loop = '    for tx in T.thread_binding(64, thread="threadIdx.x"):\n'
    path.write_text(before + loop + textwrap.indent(behind, "    "))
    for command in (["compare", str(path)], ["map", str(path), "-o", out]):
        assert main([*command, "--shared-memory"]) == 2
        assert "loop 'tx' is bound to a thread; name a target" in capsys.readouterr().err
    assert main(["compare", str(path), "--shared-memory", "--target", "opencl"]) == 0
