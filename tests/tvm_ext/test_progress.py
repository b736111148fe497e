# SPDX-License-Identifier: Apache-2.0
"""What the command says on standard error while it works."""

from __future__ import annotations

import io
import os
import sys
import time

import pytest

from tvm_ext import __main__, progress
from tvm_ext.commands.command_options import progress_line


class Stream(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def wait_for(text: str, stream: io.StringIO) -> None:
    while text not in stream.getvalue():
        time.sleep(0.01)


@pytest.fixture
def streams(monkeypatch):
    def made(terminal: bool) -> tuple[Stream, Stream]:
        found = Stream(terminal), Stream(terminal)
        monkeypatch.setattr(sys, "stdout", found[0])
        monkeypatch.setattr(sys, "stderr", found[1])
        return found

    monkeypatch.setattr(progress, "FIRST", 0.01)
    monkeypatch.setattr(progress, "LATER", 0.01)
    return made


def test_a_terminal_shows_what_is_done_until_something_is_printed(streams):
    out, err = streams(terminal=True)
    with progress.shown():
        wait_for("importing TVM", err)
        with progress_line("layers") as show:
            show(3, 7)
            wait_for("3 of 7 layers", err)
        print("a table")
        shown = err.getvalue()
        assert shown.endswith("\r\033[K")
        print("another one")
    assert (out.getvalue(), err.getvalue()) == ("a table\nanother one\n", shown)
    assert (sys.stdout, sys.stderr) == (out, err)


def test_elsewhere_lines_are_written_ever_more_rarely(streams):
    _, err = streams(terminal=False)
    with progress.shown():
        for stage in ("lowering for llvm", "planning shared memory"):
            with progress.stage(stage):
                wait_for(stage, err)
        time.sleep(0.2)
    lines = err.getvalue().splitlines()
    assert all(line.endswith("so far") for line in lines)
    assert len(lines) < 20  # Twice the time for each: the 20th would come after an hour.


def test_warnings_that_go_past_python_are_kept_away_and_errors_are_not(capfd):
    error = "[00:00:00] op.cc:276: Error: no memory"

    def fail() -> None:
        with progress.without_warnings():
            os.write(2, b"[00:00:00] op.cc:275: Warning: Detected pow\n")
            os.write(2, f"{error}\n".encode())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    os.write(2, b"after\n")
    assert capfd.readouterr().err.splitlines() == [error, "after"]


POW = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4,), "float32")):
        with R.dataflow():
            y = R.power(R.exp(x), R.const(3.0, "float32"))
            z = R.sum(R.exp(y))
            R.output(z)
        return z
"""


@pytest.mark.parametrize("verbose", [False, True])
def test_the_command_has_the_warnings_of_tvm_where_they_are_asked_for(verbose, tmp_path, capfd):
    path = tmp_path / "pow.py"
    path.write_text(POW)
    assert __main__.main([*["-v"] * verbose, "compare", str(path)]) == 0
    assert ("Warning" in capfd.readouterr().err) == verbose


def test_no_command_at_all_prints_the_help(capsys):
    assert __main__.main([]) == 0
    assert "compare" in capsys.readouterr().out
