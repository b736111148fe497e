# SPDX-License-Identifier: Apache-2.0
"""The pages and their site: links lead somewhere, Python runs, and commands are understood."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest
import sweeps
import tvm

import tvm_ext
from tvm_ext import workloads
from tvm_ext.__main__ import _parser, main

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FRAGMENTS = "stock-differences.md"
"""A page whose blocks are parts of TVMScript functions: they are parsed, and not run."""
ELSEWHERE = "targets.md"
"""A page whose blocks the tests of the targets run."""
HOSTS = "hosts.md"
"""A page whose blocks need another compiler."""


def named(pages: list[Path]) -> list[object]:
    return [pytest.param(page, id=page.name) for page in pages]


def blocks(page: Path, language: str) -> list[str]:
    """Return the code blocks of a page, with those in list items moved to the left."""
    found = re.findall(
        rf"^( *)```{language}\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.DOTALL | re.M
    )
    return [re.sub(f"^{indent}", "", text, flags=re.M) for indent, text in found]


# -------------------------------------------------------------------------------------- links


def without_blocks(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.M)


def anchors(page: Path) -> set[str]:
    """Return the names by which GitHub links to a page's headings."""
    headings = re.findall(r"^#+ +(.*?) *$", without_blocks(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", named(PAGES))
def test_every_link_leads_somewhere(page):
    text = re.sub(r"`[^`\n]*`", "", without_blocks(page)).replace("\n", " ")
    links = re.findall(r"\]\(([^)]*)\)", text)
    for link in links:
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {link}"


@cache
def files() -> list[str]:
    """Return the names of the project's files in Python, and not of an environment beside them."""
    folders = (path for path in ROOT.iterdir() if path.is_dir() and path.name[0] != ".")
    return [str(path.relative_to(ROOT)) for each in folders for path in each.rglob("*.py")]


@pytest.mark.parametrize("page", named(PAGES))
def test_every_file_that_is_named_is_there(page):
    for name in re.findall(r"`([\w./]+/[\w.]+\.py)`", page.read_text(encoding="utf-8")):
        assert any(path == name or path.endswith(f"/{name}") for path in files()), name


# ------------------------------------------------------------------------------------- Python


def save_network(path: Path) -> None:
    """Save a network such as a reader may bring: of any batch, with a recurrent layer."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.mix = torch.nn.Embedding(50, 8), torch.nn.LSTM(8, 8, batch_first=True)
            self.head = torch.nn.Linear(8, 4)

        def forward(self, tokens):
            return self.head(self.mix(self.words(tokens))[0][:, -1])

    sizes = {"tokens": {0: torch.export.Dim("batch", max=16)}}
    example = (torch.ones(2, 6, dtype=torch.int64),)
    torch.export.save(torch.export.export(Network(), example, dynamic_shapes=sizes), path)


SMALL = """
@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor((1, 3, 32, 32), "float32"),
        first: R.Tensor((8, 3, 3, 3), "float32"),
        second: R.Tensor((8, 8, 3, 3), "float32"),
    ):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            lv0 = R.nn.relu(R.nn.conv2d(x, first))
            lv1 = R.nn.relu(R.nn.conv2d(lv0, second, padding=1))
            lv2 = R.nn.max_pool2d(R.concat((lv0, lv1), axis=1), pool_size=3, strides=2)
            R.output(lv2)
        return lv2
"""
"""A network in the place of the one that pages take, whose many operators say no more here."""


@pytest.mark.parametrize(
    "network", sweeps.sample([None, SMALL], SMALL), ids=lambda n: "small" if n else "whole"
)
@pytest.mark.parametrize("page", named([p for p in PAGES if p.name not in (FRAGMENTS, ELSEWHERE)]))
def test_python_runs_from_the_top_of_a_page_down(page, network, tmp_path, monkeypatch):
    if network:
        monkeypatch.setattr(workloads, "model", lambda _name: tvm.script.from_source(network))
    if page.name == HOSTS:
        pytest.importorskip("executorch", reason="ExecuTorch is not installed")
    monkeypatch.syspath_prepend(str(page.parent))
    monkeypatch.delitem(sys.modules, "own_planner", raising=False)  # it registers when imported
    monkeypatch.chdir(tmp_path)
    if page.name == "README.md" and find_spec("torch") is not None:
        save_network(tmp_path / "net.pt2")
    page_module = ModuleType("a_page")
    monkeypatch.setitem(sys.modules, "a_page", page_module)
    for at, block in enumerate(blocks(page, "python")):
        if "torch.export" in block and find_spec("torch") is None:
            continue
        # In a file, because TVMScript reads the text of a function, and of a class by its module.
        path = tmp_path / f"{page.stem}_block_{at}.py"
        path.write_text(block)
        page_module.__file__ = str(path)
        exec(compile(block, str(path), "exec"), vars(page_module))


def test_parts_of_functions_are_python():
    page = ROOT / "docs" / FRAGMENTS
    found = blocks(page, "python")
    assert found
    for at, block in enumerate(found):
        compile(block, f"{page.name}, block {at}", "exec")


# ----------------------------------------------------------------------------------- commands


def commands(page: Path) -> list[list[str]]:
    """Return the words of each command of a page, where ``&&`` or a new line begins another."""
    found = []
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            for command in line.split("&&"):
                words = shlex.split(command, comments=True)
                if words:
                    found.append(words)
    return found


@pytest.mark.parametrize("page", named(PAGES))
def test_commands_are_understood(page):
    for words in commands(page):
        program = Path(words[0]).name
        if program == "tvm-ext":
            arguments = words[1:]
        elif program.startswith("python") and words[1:3] == ["-m", "tvm_ext"]:
            arguments = words[3:]
        elif program.startswith("python") and words[1].endswith(".py"):
            assert (ROOT / words[1]).is_file(), words
            continue
        else:
            continue
        assert _parser(arguments, "tvm-ext").parse_args(arguments).run, words


def test_the_files_of_the_page_are_planned(tmp_path, monkeypatch, capsys):
    page = ROOT / "docs" / "tables.md"
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"<!-- file: (\S+) -->\n```(?:csv|json)\n(.*?)```", text, re.DOTALL)
    for name, content in files:
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    (words,) = (words for words in commands(page) if words[1] == "plan")
    asked = [words[1:], *(["plan", name] for name, _ in files if name not in words)]
    assert len(asked) == len(files) == 3
    for arguments in asked:
        assert main(arguments) == 0
        assert "proven" in capsys.readouterr().out
    assert (tmp_path / words[words.index("--output") + 1]).is_file()


# ------------------------------------------------------------------------------------- the site


def test_every_name_has_a_text():
    values = {name: getattr(tvm_ext, name) for name in tvm_ext.__all__}
    assert [name for name, value in values.items() if not inspect.getdoc(value)] == []


def test_every_page_and_notebook_is_in_the_navigation():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r": ([\w./-]+\.(?:md|ipynb))$", site, re.M)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    notebooks = {f"tutorials/{path.name}" for path in (ROOT / "tutorials").glob("*.ipynb")}
    beside = {"index.md", "CONTRIBUTING.md", "CHANGELOG.md"}
    assert sorted(listed) == sorted(pages | notebooks | beside)
