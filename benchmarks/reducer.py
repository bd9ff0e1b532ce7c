"""How fast are traces reduced, in how much memory, and does the time grow linearly with ranks?

    python benchmarks/reducer.py [--ranks 64 128 256 512] [--cases 50] [--iterations 1000]

Synthetic traces, sealed by the real writer: durations of about 300 us with noise, every start after
a gap of its own, so that the columns pack as badly as real ones. Samples count as raw bytes: five
int64 an iteration and rank. In turns with that, a process reads these columns of all traces with
h5py, and does nothing with them: a bound of the disk and of zlib. It proves no checksum and reads
no table. Both processes have loaded their code before. In each turn the bare read is done twice:
how far equal things are apart. Goals: 100 MB/s, peak memory below 500 MiB, a doubling of ranks at
most doubles the time (10 % allowed for noise). The median of the turns has to keep the first goal,
the interval over turns the last. All sizes are reduced in this one
run, each in a process of its own, whose peak memory is its own. Beside the wall time stands the CPU
time (user and system), which other load disturbs less.
--parts also times, in this process, parts that no reduction of these traces can leave out.
--folder keeps the traces for another run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.plan.case import planner_of
from hpcbench.reduce.kind_facts import deriver_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from hpcbench.__main__ import rare_collection  # noqa: E402
from hpcbench.kinds.registry import kinds  # noqa: E402
from hpcbench.measurement.process import KernelFiles  # noqa: E402
from hpcbench.plan.case import Plan, plan_to_json  # noqa: E402
from hpcbench.reduce.reduce import reduce_folder  # noqa: E402
from hpcbench.trace.clock import ClockModel  # noqa: E402
from hpcbench.trace.container import verify  # noqa: E402
from hpcbench.trace.journal import Journal, journal_path  # noqa: E402
from hpcbench.trace.schema import (  # noqa: E402
    NO_DEVICE_TIME,
    SAMPLE_COLUMNS,
    SCHEMA_VERSION,
    Flag,
    Header,
    SampleColumns,
    Samples,
)
from hpcbench.trace.sealed import (  # noqa: E402
    FORMAT,
    Known,  # noqa: E402
    open_trace,
    seal,
    trace_path,
)
from launching import fail  # noqa: E402
from ratios import Ratio, ratio  # noqa: E402
from synthetic import (  # noqa: E402
    BASE_NS,
    CASE_NS,
    make_header,
    make_plan,
    make_record,
    sync_note,
)

RANKS_OF_A_NODE = 8
"""As `synthetic.make_header` has it."""
GOAL_MB_PER_S, GOAL_MIB, GOAL_GROWTH = 100, 500, 1.1


def main() -> None:
    """Make the traces, reduce them at each number of ranks, and print rates and growth."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to make the traces; kept")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--reduce", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.repeat < 2:
        parser.error("--repeat must be at least 2: an interval needs two turns")
    if given.reduce or given.read:
        for kind in kinds():
            planner_of(kind)
            deriver_of(kinds()[kind])
        timed(lambda: reduce_once(given.reduce) if given.reduce else read_once(given.read))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folders = make_runs(given.folder or Path(scratch), given)
        missed = compare(folders, given)
        if given.parts:
            print_parts(folders[min(folders)])
        sys.exit(int(missed))


def make_runs(parent: Path, given: argparse.Namespace) -> dict[int, Path]:
    """Return a results folder for each number of ranks."""
    folders = {}
    for ranks in given.ranks:
        folder = parent / f"{ranks}x{given.cases}x{given.iterations}"
        folders[ranks] = folder
        if not (folder / "plan.json").exists():
            (folder / "traces").mkdir(parents=True)
            plan = plan_for(ranks, given)
            for rank in range(ranks):
                write_trace(folder / "traces", plan, rank)
            (folder / "plan.json").write_text(json.dumps(plan_to_json(plan)))
    return folders


def plan_for(ranks: int, given: argparse.Namespace) -> Plan:
    """Return a plan of as many cases as were asked for, all of one size."""
    return make_plan(given.cases, ranks, warmup=5, iterations=given.iterations - 5, size_bytes=8,
                     requested_bytes=8, count=2, memory_bytes=16)


def write_trace(traces: Path, plan: Plan, rank: int) -> None:
    """Write the sealed trace of one rank."""
    path, header = journal_path(traces, rank), make_header(plan, rank)
    noise = np.random.default_rng(rank)
    rows = (samples(noise, case.index, case.iterations + 5) for case in plan.cases)
    records = [make_record(case, rank, samples=SampleColumns.of_rows(of_case))
               for case, of_case in zip(plan.cases, rows, strict=True)]
    with Journal.create(path, header, plan if rank == 0 else None) as journal:
        for at_ns in (BASE_NS, BASE_NS + CASE_NS * len(plan.cases)):
            journal.note(*sync_note(clock_of(header, at_ns), header.node, 2))
        journal.append(*records)
        journal.note("end", {})
    seal(path, trace_path(traces, rank))
    path.unlink()


def clock_of(header: Header, at_ns: int) -> ClockModel:
    """Return a synchronisation: rank 0's node has the global clock, other nodes clocks as good."""
    model = ClockModel.identity(at_ns)
    return model if header.rank < RANKS_OF_A_NODE else replace(model, bound_ns=500.0, parent=0)


def samples(noise: np.random.Generator, case_index: int, rows: int) -> Samples:
    """Return stamps within the window that `synthetic.make_record` gives the case.

    The ranks start each iteration within 100 us: nobody leaves before all have come.
    """
    table = np.zeros((rows, len(SAMPLE_COLUMNS)), dtype=np.int64)
    steps_ns = np.random.default_rng(case_index).integers(550_000, 900_000, rows)
    table[:, 0] = 10**12 + case_index * 10**9 + np.cumsum(steps_ns)
    table[:, 0] += noise.integers(0, 100_000, rows)
    table[:, 1] = table[:, 0] + noise.integers(200_000, 400_000, rows)
    table[:, 2:4] = NO_DEVICE_TIME
    table[:5, -1] = Flag.WARMUP
    return table


@dataclass(frozen=True, slots=True)
class Took:
    """What reducing or reading a folder took in one turn, and the largest memory."""

    wall_s: float
    cpu_s: float
    peak_mib: float


@dataclass(frozen=True, slots=True)
class Turns:
    """All turns with one number of ranks; ``again`` is the bare read once more, in each turn."""

    ranks: int
    raw_mb: float
    bare: Sequence[Took]
    reduced: Sequence[Took]
    again: Sequence[Took]

    @property
    def wall_s(self) -> float:
        """Return the median time of a reduction."""
        return float(np.median(wall_s(self.reduced)))

    @property
    def peak_mib(self) -> float:
        """Return the most memory that a reduction took."""
        return max(item.peak_mib for item in self.reduced)

    @property
    def over_bare(self) -> Ratio:
        """Return how many times as long as a bare read a reduction takes."""
        return ratio(wall_s(self.reduced), wall_s(self.bare))

    def line(self) -> str:
        """Return it in words."""
        over, cpu_s = self.over_bare, [
            float(np.median([item.cpu_s for item in items])) for items in (self.reduced, self.bare)]
        equal = ratio(wall_s(self.again), wall_s(self.bare))
        return (f"{self.ranks:>4} ranks {self.raw_mb:7.1f} MB: {self.wall_s:.2f} s, "
                f"{self.raw_mb / self.wall_s:.0f} MB/s, CPU {cpu_s[0]:.2f} s; over a bare read "
                f"{over.text}, which is {1 / over.mean:.2f} ({1 / over.interval.high:.2f}.."
                f"{1 / over.interval.low:.2f}) of its rate, by CPU {cpu_s[1] / cpu_s[0]:.2f}; a "
                f"bare read over another {equal.text}; peak {self.peak_mib:.0f} MiB")


def wall_s(turns: Sequence[Took]) -> npt.NDArray[np.float64]:
    """Return the wall times of all turns, (turn,)."""
    return np.array([item.wall_s for item in turns])


def compare(folders: dict[int, Path], given: argparse.Namespace) -> bool:
    """Read and reduce every folder several times, in turn; return whether a goal is missed."""
    sizes = []
    for ranks in sorted(folders):
        raw_mb = ranks * given.cases * given.iterations * 8 * len(SAMPLE_COLUMNS) / 1e6
        sizes.append(Turns(ranks, raw_mb, [], [], []))
    for _ in range(given.repeat):
        for size in sizes:
            for what, into in (("--read", size.bare), ("--reduce", size.reduced),
                               ("--read", size.again)):
                into.append(took(what, folders[size.ranks]))
    missed, before = False, None
    for size in sizes:
        print(size.line())
        if before is not None:
            growth = ratio(wall_s(size.reduced) / size.ranks, wall_s(before.reduced) / before.ranks)
            missed |= growth.interval.high > GOAL_GROWTH
            print(f"     time over ranks: {growth.text} of that with {before.ranks} ranks")
        missed |= size.raw_mb / size.wall_s < GOAL_MB_PER_S or size.peak_mib > GOAL_MIB
        before = size
    print(f"goals: {GOAL_MB_PER_S} MB/s, {GOAL_MIB} MiB, {GOAL_GROWTH} by the farther end of its "
          "interval: " + ("missed" if missed else "met"))
    return missed


def took(what: str, folder: Path) -> Took:
    """Read or reduce a folder in a process of its own."""
    done = subprocess.run([sys.executable, __file__, what, str(folder)],
                          capture_output=True, text=True, check=True)
    return Took(*map(float, done.stdout.split()))


def timed(work: Callable[[], None]) -> None:
    """Do it; print wall seconds, CPU seconds and peak memory in MiB."""
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    work()
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_began_s
    if (peak := KernelFiles().process_bytes("VmHWM")) is None:
        fail("/proc/self/status does not tell this process's peak memory (VmHWM)")
    print(wall_s, cpu_s, peak / (1 << 20))


def reduce_once(folder: Path) -> None:
    """Reduce one folder as the commands do."""
    with rare_collection():
        results = reduce_folder(folder)
    if any(item.status != "ok" for item in results.cases) or results.findings:
        fail(f"not all ok: {results.findings[:3]}")


def read_once(folder: Path) -> None:
    """Read the stamps of all traces, and do nothing with them."""
    for path in sorted((folder / "traces").glob("*.h5")):
        with h5py.File(path, "r", locking=False) as file:
            for name in SAMPLE_COLUMNS:
                file[f"samples/{name}"][:]


def print_parts(folder: Path) -> None:
    """Print what parts of the work take, least CPU time of three."""
    paths = sorted((folder / "traces").glob("*.h5"))
    parts: dict[str, Callable[[], object]] = {
        "checksum": lambda: [verify(path, FORMAT, SCHEMA_VERSION) for path in paths],
        "checksum, notes and tables": lambda: _open_all(paths),
        "bare read": lambda: read_once(folder)}
    for name, part in parts.items():
        times_s = []
        for _ in range(3):
            began_s = time.process_time()
            part()
            times_s.append(time.process_time() - began_s)
        print(f"{name}: {min(times_s) / len(paths) * 1e3:.2f} ms a rank")


def _open_all(paths: Sequence[Path]) -> None:
    """Open traces as the reducer does: what they have in common is read once."""
    known: Known = {}
    for path in paths:
        open_trace(path, known)


if __name__ == "__main__":
    main()
