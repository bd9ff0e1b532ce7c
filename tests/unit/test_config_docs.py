from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpcbench.config.load import PACKAGED, check_config, json_schema, load_config
from hpcbench.config.schema import (
    Config,
    Hardware,
    Launch,
    Measure,
    Output,
    Profiling,
    Telemetry,
    keys_of,
)
from hpcbench.config.section import Fault, Section
from hpcbench.kinds.collective.block import CollectiveBlock
from hpcbench.kinds.primitive.block import PrimitiveBlock
from hpcbench.kinds.training.block import TrainingBlock

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/config.md").read_text()


def test_the_packaged_file_is_the_shipped_one() -> None:
    assert PACKAGED.read_bytes() == (ROOT / "config.json").read_bytes()


def test_the_shipped_file_loads_and_asks_for_every_kind_of_backend() -> None:
    backends = {name for block in load_config(PACKAGED).benchmarks for name in block.backend}
    assert backends == {"gloo", "nccl", "ucc", "mpi"}


def test_the_schema_in_docs_is_the_generated_one() -> None:
    written = json.loads((ROOT / "docs/config.schema.json").read_text())
    assert written == json.loads(json_schema())


@pytest.mark.parametrize("section", [
    Config, CollectiveBlock, PrimitiveBlock, TrainingBlock, Measure, Launch, Hardware, Output,
    Profiling, Telemetry, Fault])
def test_every_key_is_documented_with_an_example(section: type[Section]) -> None:
    for key in keys_of(section):
        assert f"| `{key}` |" in DOC or key == "$schema"
        assert f'"{key}": ' in DOC or section is Config


def test_every_example_row_is_a_json_member_of_some_section() -> None:
    sections = (Config, CollectiveBlock, PrimitiveBlock, TrainingBlock, Measure, Launch, Hardware,
                Output, Profiling, Telemetry, Fault)
    keys = {key for section in sections for key in keys_of(section)}
    examples = re.findall(r"`(\"\w+\": [^`]*)` \|$", DOC, re.MULTILINE)
    assert len(examples) > 40
    assert {key for text in examples for key in json.loads(f"{{{text}}}")} <= keys


def test_every_whole_example_loads() -> None:
    examples = re.findall(r"```json\n(.*?)```", DOC, re.DOTALL)
    assert len(examples) == 4
    for text in examples:
        check_config(json.loads(text), "docs/config.md")


def test_every_flag_stands_for_a_key_that_there_is() -> None:
    """A renamed module once got into the table, in place of `launch.inline`."""
    sections = {"": Config, "measure": Measure, "launch": Launch, "output": Output,
                "profiling": Profiling}
    rows = re.findall(r"^\| `-.* \| (.*) \|$", DOC, re.MULTILINE)
    named = [key.rpartition(".") for row in rows for key in re.findall(r"`([\w.]+)`", row)]
    assert len(named) > 10
    for section, _, key in named:
        assert key in keys_of(sections[section]), f"{section}.{key}"
