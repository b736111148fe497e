# SPDX-License-Identifier: Apache-2.0
"""The folder of CUDA sources that runs on a machine without TVM: written, checked, run here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda_on_cpu import Nvrtc, Threads

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import gpu_sources  # noqa: E402
import gpu_sources_run  # noqa: E402

NAMES = ("phases three", "phases dynamic", "phases other", "attention decode")
NAMES += ("matmul 32x32x32 ", "random ", "argmax 4x128 ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sources")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_sources, "RANDOM", 3)
        gpu_sources.write(made, NAMES)
    return made


def test_the_folder_is_whole_without_tvm(folder: Path):
    """It is checked by its own script, from another folder."""
    command = [sys.executable, "-I", str(folder / "run.py"), "--check"]
    said = subprocess.run(command, cwd="/", capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
    kernels, _, _ = gpu_sources_run.read(folder)
    assert f"{len(kernels)} kernels, {2 * len(kernels)} sources" in said.stdout
    assert len({one["name"] for one in kernels}) == len(kernels) > 10
    taken = {
        way: sum(one["ways"][way]["static"] + one["ways"][way]["dynamic"] for one in kernels)
        for way in ("stock", "ours")
    }
    assert taken["ours"] < taken["stock"]


def test_what_is_wrong_with_a_folder_is_said(folder: Path, capsys: pytest.CaptureFixture[str]):
    listed, texts, data = gpu_sources_run.read(folder)
    ours = listed[0]["ways"]["ours"]
    ours["block"] = [4096, 1, 1]
    ours["static"] = 1 << 20
    data.pop(f"{listed[0]['key']}/{ours['arguments'][0]}")
    listed[1]["ways"]["stock"]["arguments"].pop()
    assert gpu_sources_run.check(listed, texts, data) == 3
    said = capsys.readouterr().out
    assert "4096 threads, of" in said
    assert "1048576 bytes, static" in said
    assert "no data of" in said
    assert "arguments that the source does not have" in said


def test_threads_of_a_cpu_compute_the_same(folder: Path, capsys: pytest.CaptureFixture[str]):
    """Under both plans they do, and a plan that shares what is live would be noticed."""
    kernels, texts, data = gpu_sources_run.read(folder)
    threads = Threads(gpu_sources_run)
    some = [one for one in kernels if one["name"].startswith(("phases", "attention"))][::3]
    assert gpu_sources_run.compare(threads, some, texts, data) == 0
    said = capsys.readouterr().out
    assert "bits DIFFER" not in said
    assert said.count("ours right") >= len(some) - 2
    (one,) = (kernel for kernel in kernels if kernel["name"] == "phases three phases")
    text = texts[one["key"]]["ours"]
    broken = {"stock": texts[one["key"]]["stock"], "ours": text.replace("[(63 -", "[(62 -")}
    assert broken["ours"] != text
    assert gpu_sources_run.compare(threads, [one], {one["key"]: broken}, data) == 1
    said = capsys.readouterr().out
    assert "bits DIFFER" in said
    assert "ours WRONG" in said


def test_sources_compile(folder: Path):
    nvrtc = Nvrtc()
    kernels, texts, _ = gpu_sources_run.read(folder)
    firsts = {one["name"].split()[0]: one for one in reversed(kernels)}
    for one in firsts.values():
        assert not nvrtc.complaint(texts[one["key"]]["ours"]), one["name"]
    assert "error" in nvrtc.complaint("__global__ void f() { nothing; }")


def test_data_are_numbers_of_numpy(folder: Path):
    listed = json.loads((folder / "kernels.json").read_text())
    with np.load(folder / "data.npz") as data:
        for one in listed:
            for name in one["results"]:
                expected = data[f"{one['key']}/{name}/expected"]
                assert np.isfinite(expected.astype("float64")).all()
                assert expected.any()
