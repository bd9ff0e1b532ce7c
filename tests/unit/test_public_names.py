"""hpcbench.plugins gives what it promises, without torch where that is not needed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbench import plugins
from launcher import ROOT

SPECS = ("CollectiveSpec", "ImplementationSpec", "KindSpec", "PrimitiveSpec", "Problem",
         "StrategySpec", "Traffic", "Values", "Work", "not_divided", "Planner", "Deriver",
         "Presenter", "Workload", "Case", "Block")


def typed_names() -> dict[str, str]:
    """Return what type checkers see: the module of each name."""
    found, files = {}, [Path(plugins.__file__)]
    while files:
        tree = ast.parse(files.pop().read_text(encoding="utf-8"))
        (block,) = [node for node in tree.body if isinstance(node, ast.If)]
        for node in block.body:
            assert isinstance(node, ast.ImportFrom)
            module = str(node.module)
            if [alias.name for alias in node.names] == ["*"]:
                files.append(ROOT / f"{module.replace('.', '/')}.py")
                continue
            found |= {alias.name: module for alias in node.names}
    return found


def test_type_checkers_see_the_names_that_there_are() -> None:
    assert sorted(typed_names()) == dir(plugins)
    for name, module in typed_names().items():
        assert getattr(plugins, name) is getattr(sys.modules[module], name), name


def test_plug_ins_of_the_tests_import_nothing_else_of_hpcbench() -> None:
    for path in (ROOT / "tests/data").glob("*plugin/**/*.py"):
        for line in path.read_text("utf-8").splitlines():
            if line.startswith(("from hpcbench.", "import hpcbench.")):
                assert line.startswith("from hpcbench.plugins import"), (path, line)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PrimitivSpec'"):
        plugins.PrimitivSpec  # noqa: B018


def test_specifications_need_no_torch() -> None:
    """Nor numpy, but for derivers, which compute with it."""
    names = ", ".join(name for name in SPECS if name != "Deriver")
    code = f"import sys; from hpcbench.plugins import {names}; found = 'numpy' in sys.modules; " \
           "from hpcbench.plugins import Deriver; sys.exit('torch' in sys.modules or found)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_what_packages_and_the_page_take_from_it_is_there() -> None:
    """The toys under tests/data, the packages in plugins/, and docs/plugins.md."""
    files = [ROOT / "docs/plugins.md", *(ROOT / "plugins").rglob("*.py"),
             *(ROOT / "tests/data").glob("*plugin*/**/*.py")]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    taken = {name.strip() for names in re.findall(
        r"from hpcbench\.plugins import (?:\(([^)]*)\)|(.*))", text)
        for name in ",".join(names).replace("\n", ",").split(",") if name.strip()}
    taken |= set(re.findall(r"(?<![\w.-])plugins\.([A-Za-z]\w*)", text))
    assert {"Deriver", "chart", "table"} <= taken
    assert not {name for name in taken - {"py", "md"} if not hasattr(plugins, name)}
