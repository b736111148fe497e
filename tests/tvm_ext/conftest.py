# SPDX-License-Identifier: Apache-2.0
"""A command as a user calls it, and programs in files."""

from __future__ import annotations

import pytest

from tvm_ext.__main__ import main


@pytest.fixture
def write(tmp_path):
    """Write a file of a name into a folder of the test, and return its path."""

    def write_file(name: str, text: str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write_file


@pytest.fixture
def run(capsys):
    """Run the command; return its exit status, what it printed, and its errors."""

    def run_main(*args: str) -> tuple[int, str, str]:
        status = main(args)
        return status, *capsys.readouterr()

    return run_main
