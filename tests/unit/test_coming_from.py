"""docs/coming-from.md names what there is: its commands run or parse, its keys are those read."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.config.schema import keys_of
from hpcbench.interop.compat.from_command import OPERATIONS
from hpcbench.interop.compat.osu import OPTIONS
from hpcbench.interop.dialects.candle import CandleFile
from hpcbench.interop.dialects.ddlb import DdlbFile
from hpcbench.interop.dialects.torchscale import TorchScaleFile
from hpcbench.interop.dialects.traffic import TrafficFile
from hpcbench.registry import DialectSpec, offered
from launcher import ROOT

DOC = (ROOT / "docs/coming-from.md").read_text(encoding="utf-8")


def commands() -> Iterator[tuple[str, ...]]:
    """Yield the words behind ``hpcbench`` of every command of ours on the page."""
    spans = re.findall(r"`([^`\n]+)`", DOC) + re.findall(r"^ {4}(\S.*)$", DOC, re.MULTILINE)
    for span in dict.fromkeys(spans):
        found = re.fullmatch(
            r"(?:mpirun -np \d+ )?(?:python -m )?hpcbench ([a-z-]+(?: .*)?)", span)
        if found:
            yield tuple(shlex.split(found[1].replace("FILE", "candle.json")))


ALL = [pytest.param(words, id=" ".join(words)) for words in commands()]


def test_the_page_has_the_commands_that_users_of_others_expect() -> None:
    assert {words[0] for words in commands()} == {
        "run", "plan", "list", "show", "validate", "gen-config", "suite", "profile",
        "from-command"}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where the files lie that the page names."""
    for name in ("ddlb.json", "torchscale.yaml", "candle.json"):
        shutil.copy(ROOT / "tests/data" / name, tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", ALL)
def test_its_flags_are_those_of_the_command(words: tuple[str, ...], files: None) -> None:
    name, *rest = words
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    with command.make_context(name, rest):
        pass  # it fails where a flag is unknown or has no such value


@pytest.mark.parametrize("words", [one for one in ALL if one.values[0][0] == "run"])
def test_what_a_run_would_do_can_be_planned(words: tuple[str, ...], files: None) -> None:
    of_a_run = {"-o", "./results", "DIR", "--inline", "--verbose"}
    done = CliRunner().invoke(app, ["plan", *(word for word in words[1:] if word not in of_a_run)])
    assert done.exit_code == 0, done.output


def sections(root: type[BaseModel]) -> Iterator[str]:
    for key, field in zip(keys_of(root), root.model_fields.values(), strict=True):
        yield key
        inner: Any = field.annotation
        for one in (inner, *getattr(inner, "__args__", ())):
            if isinstance(one, type) and issubclass(one, BaseModel):
                yield from sections(one)


NOTED = {"input_shape", "output_shape", "learning_rate", "num_epochs", "warmup_steps",
         "checkpoint_interval", "gradient_sync_freq", "memory_profiling", "power_profiling",
         "communication_profiling", "output_detailed_logs", "optimization", "monitoring"}
SAME = {"heads", "model_type", "hardware", "model", "training", "benchmark", "parallelization"}
"""Sections, and keys that are another's spelling or have one value."""


def test_every_key_of_a_file_is_documented() -> None:
    assert {DdlbFile, TorchScaleFile, CandleFile, TrafficFile} == {
        one.load() for one in offered(DialectSpec).values()}
    told = set(re.findall(r"[a-z_]+", DOC))
    assert set(sections(TorchScaleFile)) <= told
    assert set(sections(CandleFile)) - NOTED - SAME <= told
    primitives = (ROOT / "docs/primitives.md").read_text(encoding="utf-8")
    assert set(sections(DdlbFile)) <= set(re.findall(r"[a-z_]+", primitives))


def test_each_tool_has_a_section() -> None:
    found = re.findall(r"^## (.*)$", DOC, re.MULTILINE)
    assert found[:5] == ["A command line", "nccl-tests", "OSU micro-benchmarks", "PARAM",
                         "ds_bench"] and len(found) == 9


def section(title: str) -> str:
    return DOC.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_tables_name_the_options_that_command_lines_are_translated_by() -> None:
    of_osu = {f"-{one.letter}" for one in OPTIONS if not one.lost} - {"-h", "-v"}
    assert set(re.findall(r"-[A-Za-z]\b", section("OSU micro-benchmarks"))) == of_osu
    of_ds_bench = {f"--{name.replace('_', '-')}" for name in OPERATIONS} - {"--reduce-scatter"}
    assert of_ds_bench <= set(re.findall(r"--[a-z0-9-]+", section("ds_bench")))


def test_the_page_shows_what_is_printed_of_a_command_line() -> None:
    text = section("A command line")
    (words,) = [words for words in commands() if words[0] == "from-command"]
    done = CliRunner().invoke(app, words)
    assert done.stdout == text.partition("```yaml\n")[2].partition("```")[0]
