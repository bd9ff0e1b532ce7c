"""hpcbench.plugins gives what it promises, without torch where that is not needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hpcbench.plan.workload
from hpcbench import plugins
from hpcbench.kinds.moved import today
from hpcbench.kinds.primitive.plan.workload import Primitive
from launcher import ROOT

SPECS = ("CollectiveSpec", "ImplementationSpec", "KindSpec", "PrimitiveSpec", "Problem",
         "StrategySpec", "Traffic", "Values", "Work", "not_divided", "Planner", "Deriver",
         "Presenter", "Workload", "Case", "Block")


def typed_names() -> dict[str, str]:
    """Return what type checkers see: the module of each name."""
    tree = ast.parse(Path(plugins.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {alias.name: str(node.module) for node in block.body
            if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_type_checkers_see_the_names_that_there_are() -> None:
    assert sorted(typed_names()) == sorted(plugins.__all__) == dir(plugins)
    for name, module in typed_names().items():
        assert getattr(plugins, name) is getattr(sys.modules[module], name), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'PrimitivSpec'"):
        plugins.PrimitivSpec  # noqa: B018


def test_specifications_need_no_torch() -> None:
    code = f"import sys; from hpcbench.plugins import {', '.join(SPECS)}; " \
           "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize(("old", "new"), [
    ("hpcbench.workloads.training.strategies.zero1:Zero1",
     "hpcbench.kinds.training.run.strategies.data:Zero1"),
    ("hpcbench.workloads.primitives.inputs.tp_mlp:Mlp",
     "hpcbench.kinds.primitive.run.inputs:Mlp"),
    ("hpcbench.workloads.collectives.data", "hpcbench.operations.data"),
    ("somebody.elses:Class", "somebody.elses:Class"),
])
def test_old_paths_have_a_place_today(old: str, new: str) -> None:
    assert today(old) == new


def test_what_plug_ins_of_0_1_import_is_what_is_there_today() -> None:
    """In a process of its own: the old names must not be left in this one."""
    code = """
import warnings; warnings.simplefilter("error")
import hpcbench.kinds.registry as registry; registry.kinds()
from hpcbench.workloads.collectives.operation import Place
from hpcbench.workloads.primitives.expected import Expected, product
from hpcbench.workloads.primitives.implementations.base import Implementation
from hpcbench.workloads.primitives.inputs.base import Inputs
from hpcbench.workloads.primitives.operands import left_operand, magnitude, right_operand
from hpcbench.workloads.primitives.inputs.tp_columnwise import Columnwise
from hpcbench.plan.primitives.spec import ImplementationSpec, PrimitiveSpec, Values
from hpcbench.plan.workload import Primitive
from hpcbench import plugins
for name in ("Place", "Expected", "product", "Implementation", "Inputs", "left_operand",
             "magnitude", "right_operand", "ImplementationSpec", "PrimitiveSpec", "Values",
             "Primitive", "Columnwise"):
    assert globals()[name] is getattr(plugins, name), name
try:
    import hpcbench.workloads.nothing
except ModuleNotFoundError as error:
    assert str(error) == "No module named 'hpcbench.workloads.nothing'"
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_a_workload_is_found_where_it_was() -> None:
    assert hpcbench.plan.workload.Primitive is Primitive
    with pytest.raises(AttributeError, match="has no attribute 'Primitve'"):
        hpcbench.plan.workload.Primitve  # noqa: B018
