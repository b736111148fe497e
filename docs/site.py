# SPDX-License-Identifier: Apache-2.0
"""Bring what lies beside docs/ into the site: README, the changes, and the tutorials.

The pages link to these files by their paths in the repository; in the site the links are rewritten.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
FROM_ROOT = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
}


def on_files(files: Files, config: Any) -> Files:
    """Add README as the first page, the other pages of the root, and the notebooks."""
    for path, name in FROM_ROOT.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        text = re.sub(r"\]\(docs/", "](", text)
        text = text.replace("](tutorials)", "](tutorials/10_pytorch.ipynb)")
        files.append(File.generated(config, name, content=text))
    for notebook in sorted((ROOT / "tutorials").glob("*.ipynb")):
        files.append(
            File.generated(config, f"tutorials/{notebook.name}", abs_src_path=str(notebook))
        )
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Let links to files of the root lead to their pages."""
    return re.sub(r"\]\(\.\./(?=tutorials/|CHANGELOG|CONTRIBUTING|README)", "](", markdown).replace(
        "](README.md", "](index.md"
    )
