"""Hints say how to install from a checkout or its URL: an index has another package of our name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcbench.errors import how_to_install
from launcher import ROOT

SENDS_ELSEWHERE = re.compile(
    r"""pip3? (?:install|download)(?: -\S+)* ["']?hpcbench(?![-\w])(?!\[[^\]]*\] @|["']? @)""")
FOLDERS = ("hpcbench", "docs", "jobs", "slurm", "plugins", "scripts", "benchmarks")
TEXTS = {".py", ".md", ".sh", ".sbatch", ".yaml", ".yml", ".json", ".toml", ".cfg", ".txt", ""}


def texts() -> Iterator[tuple[Path, str]]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in TEXTS and path.is_file()]
    for path in (*paths, ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        yield path, path.read_text("utf-8")


@pytest.mark.parametrize(("text", "wrong"), [
    ("pip install hpcbench", True), ("pip install 'hpcbench[run]'", True),
    ("pip install -U hpcbench==1", True), ("python -m pip install hpcbench[run]", True),
    ("pip install '.[run]'", False), ("pip install ./plugins/hpcbench-jax", False),
    ("pip install 'hpcbench[run] @ git+https://host/hpcbench'", False),
    ("pip install hpcbench-jax", False)])
def test_the_pattern_distinguishes_them(text: str, wrong: bool) -> None:
    assert bool(SENDS_ELSEWHERE.search(text)) == wrong


def test_nothing_sends_a_user_to_the_other_package() -> None:
    found = {path.relative_to(ROOT).as_posix(): match.group()
             for path, text in texts() if (match := SENDS_ELSEWHERE.search(text))}
    assert found == {}


def test_extras_are_only_named_where_the_command_is_right() -> None:
    """Without pip beside it, too: ``hpcbench[run]`` reads as a name to install."""
    spelled = re.compile(r"hpcbench\[\w[\w,]*\](?! @)")
    found = {path.relative_to(ROOT).as_posix() for path, text in texts() if spelled.search(text)}
    assert found == set()


def test_the_hint_names_the_checkout() -> None:
    assert how_to_install("run,mpich") == "pip install '.[run,mpich]' in a checkout of hpcbench"
