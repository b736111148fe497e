# SPDX-License-Identifier: Apache-2.0
"""The tool that runs TVM's tests, on a checkout of four tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tvm_suite

CHECKOUT = """
import os
import time
import tvm
from tvm import tirx


def name_of_the_pass():
    return str(tirx.transform.StorageRewrite().info.name)


def test_that_needs_the_stock_pass():
    assert name_of_the_pass() == "tirx.StorageRewrite"


def test_that_crashes_with_another_one():
    if name_of_the_pass() != "tirx.StorageRewrite":
        os.abort()


def test_that_hangs_with_another_one():
    if name_of_the_pass() != "tirx.StorageRewrite":
        time.sleep(1000)


def test_that_runs_either():
    tirx.transform.StorageRewrite()(tvm.IRModule())


def test_that_runs_none():
    pass


def test_that_fails_anyway():
    assert name_of_the_pass() == "another"
"""

FILE = "tests/python/few/test_few.py"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    file = tmp_path / FILE
    file.parent.mkdir(parents=True)
    file.write_text(CHECKOUT)
    return tmp_path


@pytest.mark.slow
def test_only_differences_are_found(checkout: Path, capsys: pytest.CaptureFixture[str]):
    kept = checkout / "stock.json"
    options = ["--folder", "few", "--mode", "storage_rewrite", "--limit", "20"]
    assert tvm_suite.main([str(checkout), *options, "--stock", str(kept)]) == 1
    printed = capsys.readouterr().out
    assert "few: 6 tests, 5 pass with stock" in printed
    assert "4 run StorageRewrite, 3 differ" in printed
    differ = [line.split("::")[1] for line in printed.splitlines() if "failed: " in line]
    ways = ("needs_the_stock_pass", "crashes_with_another_one", "hangs_with_another_one")
    assert sorted(differ) == sorted(f"test_that_{way}" for way in ways)
    stock = json.loads(kept.read_text())["few"]
    assert stock[f"{FILE}::test_that_fails_anyway"]["outcome"] == "failed"
    asking = [*differ, "test_that_runs_either"]
    assert sorted(tvm_suite.concerned(stock, ["StorageRewrite"])) == sorted(
        f"{FILE}::{test}" for test in asking
    )
