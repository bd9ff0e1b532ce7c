"""Clocks compared under a real mpirun, against exact truth; see on_clocks.py."""

from __future__ import annotations

import functools
import json
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from launcher import EVERY_MPI_IF_ALL, MPICH_AND_OPENMPI, Finished, MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

ON_CLOCKS = Path(__file__).with_name("on_clocks.py")
AT_SYNC_NS, AFTER_3_S_NS = 5_000, 25_000
"""Goals for more ranks than free cores. A machine may be too busy for them, and then has to say so:
an error may be larger only if the bound is, too."""
IN_A_TIME_NAMESPACE = """
exec unshare -T --monotonic $((1000 * (${PMI_RANK:-$OMPI_COMM_WORLD_RANK} + 1))) --fork \
    --kill-child "$@"
"""
Rows = dict[str, list[dict[str, Any]]]


def rows(done: Finished) -> Rows:
    """Return what each rank printed, by the name of the step, in order of the ranks."""
    found: Rows = defaultdict(list)
    for line in done.stdout.splitlines():
        row = json.loads(line)
        found[row["name"]].append(row)
    return {name: sorted(each, key=lambda row: row["rank"]) for name, each in found.items()}


def on_clocks(
    mpirun: MpiLauncher, ranks: int, what: str, words: tuple[str, ...] = (), **options: Any,
) -> Finished:
    """Run the script; ``words`` stand between ``mpirun -np N`` and it."""
    command = [*words, mpirun.program("python"), str(ON_CLOCKS), what]
    return mpirun.run(ranks, command=command, timeout=90, **options)


def assert_right(row: dict[str, Any]) -> None:
    """Check errors right after the synchronisation and 3 s later."""
    goals = (AT_SYNC_NS, AFTER_3_S_NS)
    for error, bound, goal in zip(row["errors_ns"], row["bounds_ns"], goals, strict=False):
        assert abs(error) <= max(goal, bound), row
    check = row["check"]
    assert check is None or check["error_ns"] <= check["bound_ns"] + row["bounds_ns"][0], row


@MPICH_AND_OPENMPI
def test_two_clocks_and_what_lies_between_two_syncs(mpirun: MpiLauncher) -> None:
    found = rows(on_clocks(mpirun, 2, "twice").check())
    for name in ("first", "second"):
        root, other = found[name]
        assert root["model"]["parent"] == -1 and root["errors_ns"] == [0, 0, 0]
        assert other["model"]["parent"] == 0 and other["check"] is not None
        assert other["n_clocks"] == 2
        assert_right(other)
        off_ppb = other["model"]["slope"] * 1e9 - other["drift_ppb"]
        assert abs(off_ppb) <= max(5_000, other["model"]["slope_bound"] * 1e9)
    for error, bound in zip(found["between"][1]["errors_ns"], found["between"][1]["bounds_ns"],
                            strict=True):
        assert abs(error) <= max(AT_SYNC_NS, bound), found["between"]


@EVERY_MPI_IF_ALL
def test_four_clocks_two_and_one(mpirun: MpiLauncher) -> None:
    """Each its own: a tree of two rounds. Two: the second rank of each takes over a model.

    Two clocks are compared with both MPIs above; which ranks compare depends on neither.
    """
    found = rows(on_clocks(mpirun, 4, "shared").check())
    assert [row["model"]["parent"] for row in found["each"]] == [-1, 0, 0, 2]
    assert [row["model"]["parent"] for row in found["two"]] == [-1, -1, 0, 0]
    for row in (*found["each"], *found["two"]):
        assert_right(row)
    first, second = found["two"][2:]
    assert first["model"] == second["model"] and first["check"] == second["check"]
    for idle in (found["two"][1], found["two"][3]):
        assert idle["cpu_s"] < idle["took_s"] / 4, "a rank that only waits has to be quiet"
    for row in found["one"]:
        assert (row["n_clocks"], row["model"]["slope"], row["model"]["offset_ns"]) == (1, 0, 0)
        assert row["used"] == ["allgather"]


@functools.cache
def _cannot(*words: str) -> str:
    """Return what a command says that fails here, "" if it does not."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        return str(error)
    return f"{done.stderr.strip()} (exit code {done.returncode})" if done.returncode else ""


def _need_time_namespaces() -> None:
    if why := _cannot("unshare", "-T", "--monotonic", "1", "--fork", "true"):
        pytest.skip(f"no time namespaces: {why}")


@pytest.mark.parametrize("mpirun", [
    "mpich", pytest.param("openmpi", marks=pytest.mark.soak)], indirect=True)
def test_clocks_that_a_time_namespace_shifts(mpirun: MpiLauncher) -> None:
    _need_time_namespaces()
    words = ("sh", "-c", IN_A_TIME_NAMESPACE, "sh")
    found = rows(on_clocks(mpirun, 2, "namespaces", words).check())["namespaces"]
    assert len({row["identity"] for row in found}) == 2, "one boot, two time namespaces"
    other = found[1]
    assert other["shifted_s"] == 1000.0
    seen_s = [(row["local_ns"] - row["realtime_ns"]) / 1e9 for row in found]
    # it is read after the other clock, by a rank that may have to wait for a core in between
    assert abs(seen_s[1] - seen_s[0] - 1000) < 100, "CLOCK_REALTIME is not shifted"
    assert_right(other)
    mpirun.assert_no_orphans()


def test_a_sweep_over_two_clocks_has_global_times(mpirun: MpiLauncher) -> None:
    """Ranks whose stamps are 1000 s apart: compared, corrected, and causal to the microsecond."""
    _need_time_namespaces()
    config = sweep("8", "4MiB", measure={"passes": 2, "iterations": 30})
    command = ("sh", "-c", IN_A_TIME_NAMESPACE, "sh", mpirun.program("python"), "-m", "hpcbench",
               "run", "config.json", "-o", "out")
    done = mpirun.run(2, config=config, command=command, timeout=90).check()
    outcome = read(mpirun.jobs[-1].home / "out" / "latest")
    clocks = outcome.results.clocks
    assert clocks is not None and (clocks.n_clocks, clocks.n_syncs) == (2, 2), str(done)
    assert clocks.bound_s is not None and clocks.check_error_s is not None
    assert 0 < clocks.bound_s < 1e-3 and clocks.drift_ppm is not None and clocks.drift_ppm < 200
    assert not {"HB121", "HB122", "HB123", "HB124"} & outcome.codes()
    for item in outcome.results.cases:
        samples = outcome.samples[item.case.case_id]
        assert item.status == "ok" and item.timing is not None and samples is not None
        assert abs(samples.start_ns[1, -1] - samples.start_ns[0, -1]) > 999e9
        assert item.timing.clock_bound_s >= 0 and item.timing.imbalance_s < 1
        if item.timing.fold == "local_max":  # so says a machine that is too busy
            assert "clock_unreliable" in item.timing.quality
    mpirun.assert_no_orphans()


def test_a_rank_that_stops_is_found_out(mpirun: MpiLauncher) -> None:
    done = on_clocks(mpirun, 3, "lost")
    assert done.returncode != 0, str(done)
    assert "rank 0: rank 1 has not answered for 1 s" in done.stdout, str(done)
    mpirun.assert_no_orphans()
