"""From a real results.h5 to every file and figure, and the listing of what there is."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from hpcbench import run
from hpcbench.__main__ import main
from hpcbench.config import axes as names
from hpcbench.config.load import BLOCKS, check_config
from hpcbench.errors import FileError
from hpcbench.kinds.training.plan.spec import strategies
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.operations.models import MODELS
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.results import Results
from hpcbench.reduce.results_file import new_results, open_results
from hpcbench.report.console import print_results
from hpcbench.report.plan_lines import by_rule, print_listing
from hpcbench.report.plots import plot_file
from hpcbench.report.results_lines import brief_tables_of, closing_lines
from hpcbench.report.summary import Work, write_reports
from hpcbench.texts import Verbosity
from hpcbench.views.presenter import presenter_of
from hpcbench.views.table import MODES, USUAL_FOLDS, Line, Table
from results_factory import (
    MemorySamples,
    make_case,
    make_results,
    mixed_results,
    not_ok,
    ok,
    sweep,
)


def stored(folder: Path, results: Results) -> Path:
    path, samples = folder / "results.h5", MemorySamples(results)
    with new_results(path) as writer:
        for item in results.cases:
            found = samples.samples(item.case.case_id)
            if found is not None:
                writer.add_samples(item.case, found)
        writer.finish(results)
    return path


def test_every_report_of_a_run(tmp_path: Path) -> None:
    results = mixed_results()
    stored(tmp_path, results)
    written = [str(path.relative_to(tmp_path)) for path in write_reports(results, tmp_path, ())]
    assert written == ["summary.json", "summary.csv", "plots/all_reduce.png",
                       "plots/all_gather.png", "plots/rank_iteration.png", "report.html"]
    assert all((tmp_path / name).is_file() for name in written)


def test_a_report_beside_the_plots_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where its process dies, or cannot be: it is written again, with a note."""
    @contextmanager
    def dying(_: object) -> Iterator[Callable[[], str | None]]:
        with run._in_fork(lambda: os._exit(3)) as finish:
            yield finish

    @contextmanager
    def lacking(work: Work) -> Iterator[Callable[[], str | None]]:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fork", Mock(side_effect=BlockingIOError("no process is left")))
            with run._in_fork(work) as finish:
                yield finish

    pages = []
    for beside in (None, run._in_fork, dying, lacking):
        stored(tmp_path, mixed_results())
        write_reports(mixed_results(), tmp_path, (), Verbosity.QUIET, "name", beside)
        pages.append((tmp_path / "report.html").read_bytes())
        (tmp_path / "report.html").unlink()
    assert len({*pages}) == 1
    dead, lacked = capsys.readouterr().err.splitlines()
    assert "exit code 3" in dead and "no process is left" in lacked


def test_no_plots_if_not_asked_for_or_nothing_is_ok(tmp_path: Path) -> None:
    results = make_results((not_ok(make_case(), "failed", "killed"),))
    stored(tmp_path, results)
    assert len(write_reports(results, tmp_path, ())) == 3
    plotted = mixed_results()
    without = replace(plotted, plan=replace(plotted.plan, config={
        **plotted.plan.config, "output": {"plots": False, "report": False}}))
    stored(tmp_path, without)
    assert len(write_reports(without, tmp_path, ())) == 2
    assert not (tmp_path / "plots").exists()


def test_advice_is_offered_only_where_something_was_measured(tmp_path: Path) -> None:
    failed = make_results((not_ok(make_case(), "failed", "killed"),))
    assert "hpcbench advise" in str([*closing_lines(mixed_results(), tmp_path)])
    assert "hpcbench advise" not in str([*closing_lines(failed, tmp_path)])


def test_what_is_drawn_is_announced_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    results = mixed_results()
    stored(tmp_path, results)
    write_reports(results, tmp_path, (), Verbosity.NORMAL)
    said = capsys.readouterr().out.splitlines()
    assert said == [f"drawing 3 plots in {tmp_path / 'plots'}",
                    f"writing {tmp_path / 'report.html'}"]


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["hpcbench", *words])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_the_command_writes_what_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = mixed_results()
    for name in ("before", "after"):
        (tmp_path / name).mkdir()
        stored(tmp_path / name, replace(results, run=replace(results.run, run_id=name)))
    target = tmp_path / "report.md"
    assert command(monkeypatch, "report", str(tmp_path / "after"), "-o", str(target)) == 0
    assert target.read_text("utf-8").startswith("# ")
    assert command(monkeypatch, "report", str(tmp_path / "after"), "-o", str(target)) == 2
    assert "--force" in capsys.readouterr().err
    page = tmp_path / "after" / "report.html"
    assert [command(monkeypatch, "report", str(tmp_path / "after")) for _ in range(2)] == [0, 0]
    for edited in (page.read_bytes().replace(b"Findings", b"My view"), b"mine"):
        page.write_bytes(edited)
        assert command(monkeypatch, "report", str(page.parent)) == 2
        assert page.read_bytes() == edited
    both = tmp_path / "both.html"
    assert command(monkeypatch, "report", "--source", str(tmp_path), "-o", str(both)) == 0
    assert command(monkeypatch, "report", str(tmp_path / "after"), "-o", str(both)) == 2
    text = both.read_text("utf-8")
    assert text.index("Differences") < text.index('id="run-1-verdict"') < text.index(
        'id="run-2-verdict"')


def test_reports_are_the_same_from_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = mixed_results()
    stored(tmp_path, results)
    print_results(results, tmp_path)
    first = capsys.readouterr().out
    with open_results(tmp_path) as file:
        print_results(file.results, tmp_path)
    assert capsys.readouterr().out == first


def test_plot_file_takes_file_or_folder_and_an_output_folder(tmp_path: Path) -> None:
    cases = sweep(("all_reduce",), ("gloo",))
    path = stored(tmp_path, make_results(tuple(ok(case) for case in cases)))
    assert [found.parent for found in plot_file(path, None, "png")] == [tmp_path / "plots"] * 2
    assert plot_file(tmp_path, None, "png") == plot_file(path, None, "png")
    elsewhere = plot_file(path, tmp_path / "a" / "b", "svg")
    assert [found.name for found in elsewhere] == ["all_reduce.svg", "rank_iteration.svg"]


def test_nothing_to_plot_is_reported(tmp_path: Path) -> None:
    path = stored(tmp_path, make_results((not_ok(make_case(), "skipped", "no nccl"),)))
    with pytest.raises(FileError, match="no case is ok.*hpcbench show"):
        plot_file(path, None, "png")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["results.h5"]


def test_listing_without_a_probe_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(MODES) == names.MODES == tuple(USUAL_FOLDS)
    print_listing(None, probe=False)
    text = capsys.readouterr().out
    for word in ("all_to_all", "bf16 (2 B)", "avg", "gloo", "nccl", "ucc/tl/ucp", "barrier_start",
                 "pipelined", "first rank's start", "shuffled", "not probed"):
        assert word in text
    for name in [*MODELS, *(spec.name for spec in strategies())]:
        assert f"\n  {name} " in text
    assert "1,313,626,112" in text


def test_types_that_are_skipped_for_one_reason_are_all_named() -> None:
    cases = {case.workload.dtype: case for case in sweep(
        ("all_reduce",), ("mpi",), (8,), dtypes=("fp16", "bf16", "fp32"))}
    lacks = [(f"mpi: MPICH 4.0.2 has no datatype for {dtype}, so it cannot", cases[dtype])
             for dtype in ("fp16", "bf16", "fp16")]
    needs = [(f"needs {number} bytes", cases["fp32"]) for number in (8, 16)]
    assert {reason: len(each) for reason, each in by_rule([*lacks, *needs]).items()} == {
        "mpi: MPICH 4.0.2 has no datatype for fp16 and bf16, so it cannot": 3,
        "needs 8 bytes (and 1 more reason like it)": 2}


COMMON: dict[str, Any] = {
    "backend": ("gloo", "mpi"), "device": ("cpu", "cuda"), "world_size": (2, 4),
    "env": {"A": [1, 2]}, "mode": ("isolated", "barrier_start"), "warmup": (3, 4),
    "iterations": (20, 30), "validate": (True, False), "poll_interval_s": (0.5, 1.0),
    "cuda_graph": (False, True), "arrival": ("together", {"late": "last", "by": "250us"})}
TEXTS = {"model": ("transformer-tiny", "gpt2"), "strategies": ("data", "zero1"),
         "dtype": ("fp32", "bf16"), "layers": (2, 4), "hidden": (64, 128), "heads": (2, 4),
         "kv_heads": (2, 4), "inner": (64, 128), "vocab": (256, 512), "seq_length": (32, 64),
         "batch_size": (4, 8), "accumulation": (1, 2), "optimizer": ("adamw", "sgd"),
         "checkpointing": ("none", "full"), "communication": ("on", "off"),
         "data": ("synthetic", "/tmp/tokens.bin"), "library": ("hpcbench", "transformers"),
         "loss": ("cross_entropy", "chunked_cross_entropy")}
IMAGES = {"width": (32, 64), "classes": (10, 20), "image_size": (32, 64)}
ADAPTERS = {"lora_rank": (4, 8)}
TRAINING = {"model": "transformer-tiny", "strategies": "data"}
EXTENTS = {"m": (64, 128), "n": (64, 128), "k": (64, 128)}
SWEPT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("collective", {"collective": "all_reduce"}, COMMON | {
        "collective": ("all_reduce", "all_gather"), "op": ("sum", "max"), "in_place": (True, False),
        "dtype": ("fp32", "bf16"), "groups": (1, 2), "cache": ("warm", "cold"),
        "async": (False, True), "size": (64, 128)}),
    ("collective", {"collective": "broadcast"}, {"root": (0, 1)}),
    ("collective", {"collective": "all_to_all"}, {"uneven": ("none", "linear")}),
    ("primitive", {"primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64,
                   "implementations": "torch"}, COMMON | EXTENTS | {
        "primitive": ("tp_columnwise", "dp_allreduce"), "dtype": ("fp32", "bf16"),
        "implementations": ("torch", "compute_only"), "order": ("AG_before", "AG_after"),
        "options": {"weight": ["sharded", "replicated"]}}),
    ("primitive", {"primitive": "tp_columnwise", "model": "gpt2", "layer": "mlp_up", "tokens": 64,
                   "implementations": "torch"}, {
        "model": ("gpt2", "gpt2-medium"), "layer": ("mlp_up", "attention_qkv"), "tokens": (64, 128),
        "degree": (2, 4)}),
    ("training", TRAINING, COMMON | TEXTS | {
        "compile": (False, True), "checkpoint_every": (2, 4), "documents": (1, 2)}),
    ("training", TRAINING | {"dtype": "bf16"}, {
        "precision": ("mixed", "bf16"), "offload_state": (False, True)}),
    ("training", TRAINING, {"strategies": {"data": {"bucket_mb": [1, 2]}},
                            "max_steps": (20, 30)}),
    ("training", {"model": "resnet50", "strategies": "data"}, IMAGES),
    ("training", {"model": "transformer-tiny", "strategies": "lora"}, ADAPTERS),
    ("memory", TRAINING, COMMON | TEXTS | {"max_steps": (20, 30)}),
    ("memory", {"model": "resnet50", "strategies": "data"}, IMAGES),
    ("memory", {"model": "transformer-tiny", "strategies": "lora"}, ADAPTERS),
    ("memory", TRAINING | {"largest_batch": True}, {"memory_limit": ("1GiB", "2GiB")}),
    ("hardware", {"test": "gemm", "shape": "64"}, COMMON | {
        "shape": ("64", "128"), "dtype": ("fp32", "bf16")}),
    ("hardware", {"test": "gemm", "dtype": "fp8_e4m3", "shape": "64", "device": "cuda"}, {
        "fast_accumulation": (True, False)}),
    ("hardware", {"test": "gemm", "model": "gpt2", "layer": "mlp_up", "tokens": 64}, {
        "model": ("gpt2", "gpt2-medium"), "tokens": (64, 128),
        "layer": ("mlp_up", "attention_qkv")}),
    ("hardware", {"test": "stream", "kernel": "copy"}, {
        "kernel": ("copy", "scale"), "threads": (1, 2), "numa_node": (0, 1),
        "dtype": ("fp32", "fp64"), "size": ("8MiB", "16MiB")}),
    ("hardware", {"test": "stream", "kernel": "host_to_device", "device": "cuda"}, {
        "memory": ("pinned", "pageable")}),
    ("hardware", {"test": "pairs", "what": "latency"}, {
        "what": ("latency", "bandwidth"), "direction": ("one way", "both at once"),
        "concurrent": (True, False), "messages": (10, 20), "cache": ("warm", "cold"),
        "size": (8, 64)}),
    ("hardware", {"test": "storage", "access": "read_random"}, {
        "access": ("read_random", "write_dcp"), "size": ("1MiB", "2MiB"),
        "test": ("storage", "stream")}),
    ("function", {"file": "FUNCTIONS"}, COMMON | {
        "dtype": ("fp32", "bf16"), "function": ("one", "two")}),
    ("replay", {"traffic": "TRAFFIC", "world_size": 2}, COMMON | {
        "gaps": ("recorded", "none"), "signature": (0, 1)}),
]
"""Kind, keys of a block, and axis -> two values of it, or its mapping of lists."""
ROOT = Path(__file__).resolve().parents[2]


def test_every_axis_of_every_kind_is_swept() -> None:
    """A list can be given for an axis: its schema has an array."""
    swept = {kind: {axis for of, _, axes in SWEPT if of == kind for axis in axes}
             for kind in BLOCKS}
    for kind, block in BLOCKS.items():
        lists = {name for name, schema in block.model_json_schema()["properties"].items()
                 if '"array"' in json.dumps(schema)}
        refused = {"memory": {"compile", "checkpoint_every", "documents", "precision",
                              "offload_state"}, "replay": {"dtype"}}.get(kind, set())
        assert swept[kind] >= lists - refused, (kind, lists - swept[kind])


@pytest.mark.parametrize(("kind", "keys", "axes"), SWEPT, ids=lambda of: str(of)[:40])
def test_cases_that_differ_in_one_axis_have_different_rows_in_the_default_table(
    kind: str, keys: dict[str, Any], axes: dict[str, Any], tmp_path: Path,
) -> None:
    files = {"FUNCTIONS": str(tmp_path / "own.py"),
             "TRAFFIC": str(ROOT / "tests/data/foreign/traffic.json")}
    (tmp_path / "own.py").write_text(
        "import hpcbench\n" + "".join(f"@hpcbench.benchmark()\ndef {name}(ctx): pass\n"
                                      for name in ("one", "two")))
    alike = []
    for axis, values in axes.items():
        of_axis = [*values] if isinstance(values, tuple) else values
        block = {"kind": kind, **{key: files.get(str(value), value) for key, value in (
            keys | {axis: of_axis}).items()}}
        cases = make_plan(check_config({"benchmarks": [block]}, "test"), 4).cases
        ran = [ok(replace(case, skip=None), 1e-3) for case in cases]  # as if there were a GPU
        assert len(ran) >= 2, axis
        rows = Counter(row for table in brief_tables_of(make_results(tuple(ran)))
                       for row in _settings_of(table))
        if max(rows.values()) > 1:
            alike.append((axis, rows))
    assert not alike, alike


def test_the_summary_names_the_batch_of_each_strategys_most_samples() -> None:
    cases = make_plan(check_config({"benchmarks": [{"kind": "training", **TRAINING | {
        "strategies": ["data", "zero1"], "batch_size": [2, 4]}}]}, "test"), 4).cases
    slow = {("zero1", 4): 4e-3}
    items = tuple(ok(case, slow.get((work.strategy, work.batch_size), 1e-3))
                  for case in cases for work in [training_of(case)])
    results = make_results(items)
    (line,) = (line.text for line in presenter_of("training").overviews(
        items, results.derived["training"]) if isinstance(line, Line) and line.topic == "training")
    assert "data batch=4)" in line and "zero1 batch=2" in line


def _settings_of(table: Table) -> Iterator[tuple[str, ...]]:
    """Yield title, heading and all cells of each row that are no result."""
    settings = [at for at, column in enumerate(table.columns) if column.better is None]
    for group in table.groups:
        for row in group.rows:
            yield (table.title, group.heading, *(table.texts(row)[at] for at in settings))
