# SPDX-License-Identifier: Apache-2.0
"""The mirrored StorageRewrite against the stock pass, on functions of real programs."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi
from corpus import Entry
from tvm import tirx

from passes.storage_rewrite.transform import StorageRewrite

_DATA = Path(os.environ.get("TVM_EXT_DATA", Path(__file__).parents[3] / "shared" / "data"))
_TVM_TESTS = _DATA / "storage_rewrite" / "tvm_tests.jsonl.gz"
_SAMPLE = 300


def _assert_like_stock(name: str, mod: tvm.IRModule, config: Mapping[str, Any]) -> None:
    with tvm.transform.PassContext(config=dict(config)):
        expected = tirx.transform.StorageRewrite()(mod)
        actual = StorageRewrite()(mod)
    if not tvm_ffi.structural_equal(actual, expected, map_free_vars=True):
        print(f"{name}, config = {config}\n{mod.script()}")
        tvm.ir.assert_structural_equal(actual, expected, map_free_vars=True)
        raise AssertionError(f"{name}: not equal, at a place that TVM does not name")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_functions_of_the_tests_of_tvm(every: bool) -> None:
    if not _TVM_TESTS.exists():
        pytest.skip(f"{_TVM_TESTS} is not there; set TVM_EXT_DATA to the data folder")
    with gzip.open(_TVM_TESTS, "rt") as lines:
        functions = lines.readlines()
    step = 1 if every else max(1, len(functions) // _SAMPLE)
    for line in functions[::step]:
        function = json.loads(line)
        _assert_like_stock(
            f"{function['id']} of {function['source']}",
            tvm.ir.load_json(function["before"]),
            function["config"],
        )


def test_own_workloads(corpus: list[Entry]) -> None:
    assert corpus
    for entry in corpus:
        _assert_like_stock(entry.name, entry.mod, entry.config)
