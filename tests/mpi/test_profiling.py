"""Profiled samples and flight records of real jobs: what is in the results folder, and what not."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.profiling.profiled_cases import SAMPLE_MARK, STALL_SHARE
from launcher import Finished, MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

SAMPLES = 4


def _profiles(job: Finished) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job.folder / "profile" / "profile.json").read_text())
    return found


def test_every_case_gets_one_trace_of_all_ranks_and_no_sample_more(mpirun: MpiLauncher) -> None:
    config = sweep("4096", profiling={"enabled": True, "samples": SAMPLES},
                   block={"mode": ["isolated", "pipelined"]})
    job = mpirun.run(2, config=config).check()
    outcome, profiles = read(job.folder), _profiles(job)
    assert job.folder is not None and "do not see this folder" not in job.stdout
    assert len(profiles["cases"]) == 2
    for item in outcome.results.cases:
        entry = profiles["cases"][item.case.case_id]
        assert (entry["profiled"], entry["problem"]) == (True, "")
        assert entry["overhead"]["n_profiled"] == SAMPLES
        assert entry["overhead"]["n_measured"] == item.statistics.n
        assert entry["overhead"]["ratio"] > 0
        assert all((job.folder / file).is_file() for file in entry["rank_files"])
        _assert_merged(json.loads(gzip.decompress((job.folder / entry["file"]).read_bytes())),
                       entry, item.statistics.median_s)
        samples = outcome.samples[item.case.case_id]
        checked_apart = 2 * (item.case.batch > 1)
        assert samples.start_ns.shape[1] == 1 + 3 + checked_apart  # what was asked for
    assert all(" ".join(line.split()) in job.prose for line in profiles["lines"])
    _assert_made_again(job.folder, profiles)


def _assert_made_again(folder: Path, profiles: dict[str, Any]) -> None:
    """Remove what rank 0 made at the end, as if it had been killed before: reduce makes it."""
    made = [folder / "profile" / "profile.json",
            *(folder / entry["file"] for entry in profiles["cases"].values())]
    for path in made:
        path.unlink()
    done = CliRunner().invoke(app, ["reduce", str(folder)])
    assert done.exit_code == 0 and all(path.is_file() for path in made), done.output
    assert "2 cases are profiled" in done.output
    again = json.loads(made[0].read_text())
    assert again["cases"] == profiles["cases"]


def _assert_merged(trace: dict[str, Any], entry: dict[str, Any], median_s: float) -> None:
    timed = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    times_us = [event["ts"] for event in timed]
    assert times_us == sorted(times_us)
    begins_us: dict[str, dict[int, float]] = {}
    for event in timed:
        if event["name"].startswith(SAMPLE_MARK) and event["cat"] == "user_annotation":
            begins_us.setdefault(event["name"], {})[event["pid"]] = event["ts"]
    assert len(begins_us) == SAMPLES
    assert all(at.keys() == {1, 2} for at in begins_us.values())
    spreads_us = sorted(max(at.values()) - min(at.values()) for at in begins_us.values())
    # ranks start a sample at an agreed time; one of them may be held up where cores are shared
    assert spreads_us[0] < 0.2 * (times_us[-1] - times_us[0])
    assert spreads_us[-1] == pytest.approx(entry["start_spread_s"] * 1e6, abs=0.01)
    assert entry["anchor_bound_s"] < max(1e-3, median_s)


def test_a_rule_decides_who_is_profiled_and_a_hang_leaves_the_last_collectives(
    mpirun: MpiLauncher,
) -> None:
    """One job: its first case hangs, its second one is profiled if its ranks wait."""
    job = mpirun.run(2, config=sweep(
        "4096", "65536", profiling={"enabled": True, "trigger": "sync_stalls"},
        launch={"timeout_s": 5},
        fault=[{"case": "* 4096B *", "rank": 1, "kind": "stop", "iteration": 2}])).check(1)
    mpirun.assert_no_orphans()
    hung = read(job.folder).of_size(4096)
    assert hung.status == "timeout"
    # two samples, and two calls that are not recorded behind the check of each
    assert "rank 0 in all_reduce #7 (4 KiB) of group 1" in hung.reason
    records = sorted((job.folder / "profile").glob("flight-*4096B*-rank*.json"))
    assert [path.stem[-5:] for path in records] == ["00000"]  # rank 1 cannot answer
    entries = json.loads(records[0].read_text())["entries"]
    assert [entry["retired"] for entry in entries].count(False) == 1
    (entry,) = _profiles(job)["cases"].values()
    share = float(entry["why"].partition("differ by ")[2].partition("%")[0]) / 100
    assert entry["profiled"] is (share >= STALL_SHARE) or abs(share - STALL_SHARE) < 0.01
    assert "1 case ended: their last collectives" in job.prose


NSYS = """#!/bin/sh
shift
options=
while :; do
    case "$1" in
        --output=*) report=$(echo "${1#--output=}" | sed "s/%p/$$/") ;;
        --*) options="$options $1" ;;
        *) break ;;
    esac
    shift
done
echo "$options -- $*" > "$report.nsys-rep"
"$@"
"""
"""Stands in for Nsight Systems: writes its options to the report, and runs the command."""


def test_nsys_is_put_around_the_workers_template(mpirun: MpiLauncher, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(NSYS)
    program.chmod(0o755)
    job = mpirun.run(1, config=sweep("1024", profiling={"enabled": True, "tool": "nsys"}),
                     env={"PATH": f"{program.parent}:{os.environ['PATH']}"}).check()
    mpirun.assert_no_orphans()
    (entry,) = _profiles(job)["cases"].values()
    assert (entry["problem"], entry["file"], len(entry["rank_files"])) == ("", "", 1)
    assert entry["overhead"]["n_profiled"] == 3
    options, _, command = (job.folder / entry["rank_files"][0]).read_text().partition(" -- ")
    assert "--trace-fork-before-exec=true" in options
    assert "--capture-range" not in options  # there is no GPU whose profiler could be started
    assert "hpcbench.template" in command
    assert "nsys-ui" in job.stdout
