from __future__ import annotations

import json
import re
from pathlib import Path

from hpcbench.config.load import PACKAGED, check_config, json_schema, load_config

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


def test_every_whole_example_loads() -> None:
    examples = re.findall(r"```json\n(.*?)```", DOC, re.DOTALL)
    assert len(examples) == 2
    for text in examples:
        check_config(json.loads(text), "docs/config.md")
