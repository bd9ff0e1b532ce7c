"""How long do the summaries and the tables of a large run take, in how much memory?

    python benchmarks/report_speed.py [--cases 3000] [--ranks 1000] [--traced 8]

Traces of a few cases are made for all ranks and reduced by the real code. What they add up to, with
the stamps of all ranks, stands in a results file for every case of a large sweep. Timed are the
commands that read such a file, each in a process of its own, from its start: the summaries
(summary.json, summary.csv, without plots), `hpcbench show` and `hpcbench show --json`, and a
program that calls `hpcbench.load`. Goals of all together: 30 s, and 1 GiB for each. Reducing the
traces is printed, too, with its time for each record (a case on a rank); it takes longer the more
records there are, and is no part of the goal.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import synthetic  # noqa: E402
from hpcbench.config.load import check_config  # noqa: E402
from hpcbench.plan.case import Plan  # noqa: E402
from hpcbench.plan.expand import make_plan  # noqa: E402
from hpcbench.reduce.records import with_records  # noqa: E402
from hpcbench.reduce.reduce import reduce_folder  # noqa: E402
from hpcbench.reduce.results_file import FILE_NAME, new_results, open_results  # noqa: E402
from hpcbench.trace.clock import ClockModel  # noqa: E402
from launching import fail  # noqa: E402

GOAL_S, GOAL_MIB = 30, 1024
SUMMARIES = ("-c", "import sys; from pathlib import Path\n"
             "from hpcbench.reduce.results_file import open_results\n"
             "from hpcbench.report.summary import write_summary\n"
             "with open_results(Path(sys.argv[1])) as file: write_summary(file.results, "
             "Path(sys.argv[1]))")
COMMANDS: dict[str, Sequence[str]] = {
    "summary.json and summary.csv": SUMMARIES, "hpcbench show": ("-m", "hpcbench", "show"),
    "hpcbench show --json": ("-m", "hpcbench", "show", "--json"),
    "hpcbench.load": ("-c", "import sys, hpcbench; "
                      "assert hpcbench.load(sys.argv[1]).cases[-1].status == 'ok'")}


class Used(NamedTuple):
    """What a process took: from start to end, of the processor, and of memory at most."""

    wall_s: float
    cpu_s: float
    mib: float


def main() -> None:
    """Make the results file, time the commands, and tell missed goals by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--traced", type=int, default=8, help="cases with traces of their own")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make_results(folder, given)
        size_mb = (folder / FILE_NAME).stat().st_size / 1e6
        print(f"{given.cases} cases x {given.ranks} ranks: {FILE_NAME} of {size_mb:.0f} MB",
              flush=True)
        sys.exit(int(not timed_commands(folder)))


def timed_commands(folder: Path) -> bool:
    """Run each command on the results, print what it took; return whether the goals are met."""
    found = {name: used_by([*command, str(folder)]) for name, command in COMMANDS.items()}
    for name, used in found.items():
        print(f"  {name:<30} wall {used.wall_s:6.2f} s, CPU {used.cpu_s:6.2f} s, "
              f"peak {used.mib:5.0f} MiB")
    total_s, peak_mib = sum(used.cpu_s for used in found.values()), max(
        used.mib for used in found.values())
    met = total_s <= GOAL_S and peak_mib <= GOAL_MIB
    print(f"together CPU {total_s:.2f} s, peak {peak_mib:.0f} MiB; "
          f"goals {GOAL_S} s, {GOAL_MIB} MiB " + ("met" if met else "missed"))
    return met


def used_by(arguments: Sequence[str]) -> Used:
    """Run Python with these arguments; return what it took."""
    began_s = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        fail(f"{' '.join(arguments)}: status {status}")
    return Used(time.perf_counter() - began_s, usage.ru_utime + usage.ru_stime,
                usage.ru_maxrss / 1024)


def make_results(folder: Path, given: argparse.Namespace) -> None:
    """Write a results file of all cases into ``folder``, each as one of those that are traced."""
    traced_folder = folder / "traced"
    plan = synthetic.make_plan(given.traced, given.ranks, requested_bytes=8, size_bytes=8, count=2)
    synthetic.write_synthetic_run(traced_folder, plan, notes=clocks_of)
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    reduced = reduce_folder(traced_folder)
    records, cpu_s = given.traced * given.ranks, time.process_time() - cpu_began_s
    print(f"reduced {records} records: wall {time.perf_counter() - began_s:.2f} s, CPU "
          f"{cpu_s:.2f} s, {cpu_s / records * 1e6:.0f} us a record", flush=True)
    whole = sweep(given.cases, given.ranks)
    items = [replace(reduced.cases[case.index % given.traced], case=case) for case in whole.cases]
    with open_results(traced_folder) as file, new_results(folder / FILE_NAME) as writer:
        stamps = [file.samples(item.case.case_id) for item in reduced.cases]
        for case in whole.cases:
            if samples := stamps[case.index % given.traced]:
                writer.add_samples(case, samples)
        writer.finish(with_records(replace(reduced, plan=whole, cases=tuple(items), derived={})))


def clocks_of(rank: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the notes of a rank whose clock was compared before and behind all cases."""
    node = f"node{rank // 8}"
    return [synthetic.sync_note(replace(ClockModel.identity(at_ns), bound_ns=500.0, parent=0), node)
            for at_ns in (synthetic.BASE_NS - 10**9, synthetic.BASE_NS + 10**12)]


def sweep(cases: int, ranks: int) -> Plan:
    """Return the plan of so many collectives: four, of two data types, in as many sizes."""
    sizes = [str(4096 * (number + 1)) for number in range(-(-cases // 8))]
    block = {"kind": "collective", "backend": "gloo", "dtype": ["fp32", "fp64"], "size": sizes,
             "mode": "barrier_start", "warmup": 2, "iterations": 5,
             "collective": ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]}
    config = check_config({"benchmarks": [block], "measure": {"passes": 1}}, "sweep")
    plan = make_plan(config, ranks)
    return replace(plan, cases=plan.cases[:cases])


if __name__ == "__main__":
    main()
