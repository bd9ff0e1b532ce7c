"""What earlier code planned, wrote and printed is planned, read and printed the same today."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import pytest

from golden import (
    EXPECTED,
    KINDS,
    RESULTS,
    RUNS,
    SWEEPS,
    command_texts,
    hpcbench,
    plan_texts,
    reduced_texts,
    results_texts,
    stopped_texts,
)
from hpcbench.plan.case import plan_from_json
from hpcbench.trace.container import SEAL

MOST_LINES = 30
HOW = "if that is meant: python tests/golden.py --write"


def compare(texts: Mapping[str, str]) -> None:
    """Fail with the first lines that differ from the files of the same names."""
    for name, text in texts.items():
        expected = (EXPECTED / name).read_text(encoding="utf-8")
        if text == expected:
            continue
        found = difflib.unified_diff(expected.splitlines(), text.splitlines(), name, "now",
                                     n=1, lineterm="")
        short = "\n".join(line[:300] for line in itertools.islice(found, MOST_LINES))
        pytest.fail(f"{name} differs ({HOW})\n{short}", pytrace=False)


@pytest.mark.parametrize(("path", "ranks"), SWEEPS)
def test_plans_are_the_same(path: str, ranks: int) -> None:
    compare(plan_texts(path, ranks))


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_shown_summarised_and_drawn_the_same(name: str) -> None:
    compare(results_texts(name))


def test_commands_print_the_same_of_themselves() -> None:
    compare(command_texts())


@pytest.mark.parametrize("name", RUNS)
def test_traces_are_reduced_to_the_same(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    compare(reduced_texts(name, folder))
    stored, anew = contents(RUNS[name] / "results.h5"), contents(folder / "results.h5")
    for finding in anew["findings"]:
        finding.pop("share", None)  # which that version had in the message alone
    kept = {key for key in stored if not key.startswith("derived")  # columns of /cases by now
            and not key.endswith("@description")}
    if name == "mixed":
        kept.remove("cases/exposed_share")  # which primitives have by now, too
    assert {key: stored[key] for key in kept} == {key: anew.get(key) for key in kept}


@pytest.mark.parametrize("kind", KINDS)
def test_what_stopped_runs_left_is_reduced_to_the_same(kind: str, tmp_path: Path) -> None:
    compare(stopped_texts(kind, tmp_path))
    planned = json.loads((tmp_path / kind / "plan.json").read_text(encoding="utf-8"))
    today = (EXPECTED / "plans" / f"stopped-{kind}-2.json").read_text(encoding="utf-8")
    assert planned["plan_hash"] == json.loads(today.splitlines()[0])["plan_hash"]


def json_values(item: h5py.Dataset) -> list[Any] | None:
    """Return what lines of JSON hold, however they are spaced; None of what is none."""
    if item.dtype.kind != "S" or item.shape != (1,):
        return None
    try:
        return [json.loads(line) for line in item[0].decode().split("\n")]
    except ValueError:
        return None


def contents(path: Path) -> dict[str, Any]:
    """Return all that a results file holds but its seal, who read it and where its modules were."""
    found: dict[str, Any] = {}

    def add(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if name == SEAL:  # of bytes, in which also the reader's version stands
            return
        found.update({f"{name}@{'units' if key == 'unit' else key}": str(value)
                      for key, value in item.attrs.items()})
        if isinstance(item, h5py.Dataset):
            found[name] = json_values(item) or (item.dtype.str, item.shape, item[()].tobytes())

    with h5py.File(path, locking=False) as file:
        file.visititems(add)
        add("", file)
        run, plan = (json.loads(file[name][()].item()) for name in ("run", "plan"))
    del run["hpcbench_version"]
    return found | {"run": run, "plan": plan_from_json(plan)}


def test_every_file_is_compared() -> None:
    plans = {f"plans/{Path(path).stem}-{ranks}" for path, ranks in SWEEPS}
    folders = {*RESULTS, "commands", *(f"stopped-{kind}" for kind in KINDS)}
    for path in EXPECTED.rglob("*.*"):
        name = path.relative_to(EXPECTED)
        assert name.parts[0] in folders or str(name.with_suffix("")) in plans, name


def _printed() -> Iterator[tuple[str, ...]]:
    """Yield commands whose tables and sentences have to fit a page."""
    for folder in map(str, RUNS.values()):
        yield from (("show", folder), ("advise", folder, "--price", "0.05"),
                    ("compare", folder, folder))
    yield "compare", str(RUNS["training"]), "--by", "strategy"
    yield from (("plan", path, "--world-size", "512") for path in dict(SWEEPS))


def test_every_line_fits_a_page_of_100_columns() -> None:
    assert not [(words, line) for words in _printed()
                for line in hpcbench(*words, columns=100).splitlines() if len(line) > 100]
