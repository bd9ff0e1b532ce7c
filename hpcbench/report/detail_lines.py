"""Where the ranks ran, and how the GPUs of a node are joined.

Details of a run, printed with --verbose: samples, comparisons of ranks, start-up, the canary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.text import Text

from hpcbench.reduce.results import CANARY_QUALITIES, FEWEST_FOR_DRIFT, Canary, Results
from hpcbench.reduce.spread import SampleCounts, launch_spreads, sample_counts, start_ups
from hpcbench.reduce.topology import GpuMatrix, RankPlace, Topology
from hpcbench.report.terminal import table_lines
from hpcbench.trace.schema import STOP_REASONS
from hpcbench.units import format_seconds, grouped, plural, rank_list
from hpcbench.views.columns import slow_rank_lines, telemetry_tables
from hpcbench.views.table import Column, Group, Line, Row, Show, Table, cell_text

MOST_PLACES = 64
"""Rows that are shown; results.h5 has all."""
_PLACES = (
    Column("ranks", "ranks"), Column("host", "host"), Column("cpus", "cores", optional=True),
    Column("numa", "NUMA nodes", optional=True), Column("gpu", "GPU", optional=True),
    Column("fabric", "NVLink domain", optional=True),
    Column("switches", "switches", meaning="Slurm's, from the top to the leaf", optional=True))
_LEGEND = (
    "X itself; NV# that many NVLinks; PSB one PCIe switch on their board; PIX one PCIe bridge; "
    "PXB several;",
    "PHB a host bridge; NODE the interconnect within a NUMA node; SYS that between NUMA nodes")


def topology_tables(results: Results) -> Iterator[Table]:
    """Yield where ranks ran, and a matrix for each way in which GPUs of a node are joined."""
    topology = results.topology
    if topology.ranks:
        yield _places_table(topology)
    for matrix, hosts in _hosts(topology).items():
        yield _matrix_table(matrix, hosts)


def _places_table(topology: Topology) -> Table:
    """Return a row for each place; ranks that share one stand together."""
    alike = grouped((_place_cells(one), one.rank) for one in topology.ranks)
    rows = [Row((rank_list(ranks), *cells)) for cells, ranks in alike.items()]
    left = len(rows) - MOST_PLACES
    notes = (Line(f"and {left} more places, in results.h5 (/topology)", "quiet"),)
    return Table("where ranks ran", _PLACES, (Group("", tuple(rows[:MOST_PLACES])),),
                 notes=notes if left > 0 else ())


def _place_cells(one: RankPlace) -> tuple[str | None, ...]:
    numa = None if one.numa_nodes is None else rank_list(one.numa_nodes)
    gpu = None if one.gpu is None else f"GPU{one.gpu}"
    return one.hostname, one.cpus, numa, gpu, one.fabric, ".".join(one.switches or ()) or None


def _hosts(topology: Topology) -> Mapping[GpuMatrix, list[str]]:
    """Return the matrices that differ in more than names, with the hosts that have them."""
    found = grouped(
        (GpuMatrix((), matrix.cpus, matrix.numa_nodes, matrix.links), one.hostname)
        for one in topology.ranks if one.matrix is not None
        for matrix in (topology.gpus[one.matrix],))
    return {matrix: [*dict.fromkeys(hosts)] for matrix, hosts in found.items()}


def _matrix_table(matrix: GpuMatrix, hosts: list[str]) -> Table:
    """Return what nvidia-smi topo -m shows of the GPUs."""
    names = [f"GPU{number}" for number in range(len(matrix.links))]
    columns = (Column("gpu", ""), *(Column(name.lower(), name) for name in names),
               Column("cpus", "CPU affinity", optional=True),
               Column("numa", "NUMA affinity", Show.COUNT, optional=True))
    rows = tuple(
        Row((name, *(link or "?" for link in links), cpus, numa))
        for name, links, cpus, numa in zip(
            names, matrix.links, matrix.cpus, matrix.numa_nodes, strict=True))
    where = ", ".join(hosts[:4]) + (", ..." if len(hosts) > 4 else "")
    return Table(f"GPUs of {where}", columns, (Group("", rows),),
                 notes=tuple(Line(text, "quiet") for text in _LEGEND))


_START_UP_COLUMNS = (
    Column("backend", "backend"), Column("ranks", "ranks", Show.COUNT),
    Column("communicator", "group opened in", Show.DURATION, better="less"),
    Column("first_call", "first call", Show.DURATION, better="less"),
    Column("ends", "passes ended"),
)


def detail_lines(results: Results) -> Iterator[Text]:
    """Yield how many samples of each sort there are, slow ranks, start-up, launches, the canary."""
    if any(item.timing is not None for item in results.cases):
        yield Text()
        yield from map(Text, _sample_lines(results))
        yield from map(Text, slow_rank_lines(results))
        yield from table_lines(_start_up_table(results))
    yield from _canary_lines(results)
    for table in (*topology_tables(results), *telemetry_tables(results)):
        yield from table_lines(table)


def _sample_lines(results: Results) -> Iterator[str]:
    """Yield how many samples there are of each sort, and how far launches lie apart."""
    counts = sample_counts(results.cases)
    yield (f"samples: {counts.counted} counted ({counts.late} late, {counts.outlier} above "
           f"median + 10 MAD{_flagged_text(counts)}); kept but not counted:")
    yield (f"  {counts.warmup} warm-ups, {counts.ramp} before the steady state, "
           f"{counts.surplus} left out so that all passes of a case weigh the same")
    if spreads := launch_spreads(results.cases):
        middle = f"{spreads.middle:.1%} in the middle case, and by "
        yield (f"launches differ by {middle if spreads.middle < spreads.widest else ''}"
               f"{spreads.widest:.1%} in {spreads.widest_case.case.label}")


def _flagged_text(counts: SampleCounts) -> str:
    """Return how many samples count that would not if passes had stopped by themselves."""
    texts = [(counts.counted_ramp, "before the steady state"),
             (counts.counted_surplus, "beyond the shortest steady pass")]
    return "".join(f", {count} {text}" for count, text in texts if count)


def detail_tables(results: Results) -> Iterator[Table]:
    """Yield the tables of a run's details: its start-up, where cases have times."""
    if any(item.timing is not None for item in results.cases):
        yield _start_up_table(results)


def _start_up_table(results: Results) -> Table:
    """Return a row per backend and number of ranks: the longest start-up, how passes ended."""
    rows = tuple(Row((
        one.backend, one.world_size, one.communicator_s, one.first_call_s,
        ", ".join(f"{count} {reason}" for reason in STOP_REASONS
                  if (count := one.stop_reasons.get(reason)))))
        for one in start_ups(results.cases))
    return Table("start-up (the longest of any rank and case), and why passes ended",
                 _START_UP_COLUMNS, (Group("", rows),))


def _canary_lines(results: Results) -> Iterator[Text]:
    """Yield how the machine drifted, as the canary saw it; or that nothing tells."""
    canary = results.canary
    configured = results.plan.config.get("measure", {}).get("canary")
    if canary is None:
        if configured is not None:
            why = "none ran" if configured else "switched off"
            yield Text(f"canary: {why}, so whether the machine drifted is unknown")
        return
    text = f"canary {canary.label}: {plural(len(canary.runs), 'run')}"
    text += f", {canary.n_not_ok} more not ok" if canary.n_not_ok else ""
    text += _canary_course(canary)
    words = [f"{word}: {CANARY_QUALITIES[word]}" for word in canary.quality]
    yield Text("; ".join([text, *words]), style="yellow" if words else "")


def _canary_course(canary: Canary) -> str:
    """Return how long the runs took, and how they changed; or why that is not known."""
    if len(canary.runs) < 2:
        return ""
    ends = [cell_text(end(run.median_s for run in canary.runs), Show.US) for end in (min, max)]
    text = f" in {format_seconds(canary.runs[-1].since_start_s)}; medians {'..'.join(ends)} us"
    if canary.drift is None or canary.tau is None:
        return f"{text}; drift: fewer than {FEWEST_FOR_DRIFT} runs cannot tell"
    return f"{text}; drift {canary.drift:+.1%} (tau {canary.tau:+.2f})"
