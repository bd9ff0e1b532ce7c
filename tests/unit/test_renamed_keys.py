"""Old names of keys: the same plan, and one line that names the new ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpcbench.config import load
from hpcbench.config.load import load_config
from hpcbench.config.schema import stored_config
from hpcbench.errors import ConfigError
from hpcbench.plan.expand import make_plan

OLD: dict[str, Any] = {
    "require": ["gloo"], "launch": {"wakeup_s": 0.3}, "benchmarks": [
        {"kind": "comm", "collective": "all_to_all", "split": ["even", "zero"], "buffers": "cold",
         "size": "64MiB", "wakeup_s": 0.4},
        {"kind": "hardware", "test": "pairs", "at_once": False}]}
NEW: dict[str, Any] = {
    "required_backends": ["gloo"], "launch": {"poll_interval_s": 0.3}, "benchmarks": [
        {"kind": "comm", "collective": "all_to_all", "uneven": ["none", "empty"], "cache": "cold",
         "size": "64MiB", "poll_interval_s": 0.4},
        {"kind": "hardware", "test": "pairs", "concurrent": False}]}


@pytest.fixture(autouse=True)
def _notes_anew() -> None:
    load._note.cache_clear()


def written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_old_names_make_the_same_plan_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    new = make_plan(load_config(written(tmp_path / "new.json", NEW)), 2)
    assert capsys.readouterr().err == ""
    old = make_plan(load_config(written(tmp_path / "old.json", OLD)), 2)
    assert old == new and {case.wakeup_s for case in old.cases} == {0.3, 0.4}
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and all(pair in said for pair in (
        "require -> required_backends", "wakeup_s -> poll_interval_s", "buffers -> cache",
        "split -> uneven (even -> none, zero -> empty)", "at_once -> concurrent"))


def test_hashes_of_plans_are_those_of_the_old_names(tmp_path: Path) -> None:
    """As version 0.1 hashed `OLD`: its run can be resumed."""
    plan = make_plan(load_config(written(tmp_path / "new.json", NEW)), 2)
    assert plan.plan_hash == "81af2abdf4e6b757"


@pytest.mark.parametrize(("old", "new", "value"), [
    ("launch.wakeup_s", "launch.poll_interval_s", 0.5), ("require", "required_backends", ["mpi"]),
    ("benchmarks.0.split", "benchmarks.0.uneven", "linear"),
    ("benchmarks.1.at_once", "benchmarks.1.concurrent", True)])
def test_set_takes_both_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, value: object,
) -> None:
    file = written(tmp_path / "new.json", NEW)
    assert load_config(file, [(old, value)]).plain() == load_config(file, [(new, value)]).plain()
    assert capsys.readouterr().err.startswith("note: command line: ")


def test_a_key_under_both_names_is_refused(tmp_path: Path) -> None:
    both = {**NEW, "launch": {"wakeup_s": 1, "poll_interval_s": 2}}
    with pytest.raises(ConfigError, match="launch.wakeup_s: is the old name of poll_interval_s"):
        load_config(written(tmp_path / "both.json", both))


def test_a_stored_plan_may_have_old_names(capsys: pytest.CaptureFixture[str]) -> None:
    config = stored_config({"require": ["mps"], "launch": {"wakeup_s": 0.3}})
    assert config.required_backends == ("mps",) and config.launch.poll_interval_s == 0.3
    assert capsys.readouterr().err == ""
