"""Checks of a run: environments, order of cases, noise, canary. `MOMENTARY` and `RANK_SPECIFIC`
list the facts that may differ; any other difference is a finding, new facts included."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import product
from typing import Any

import numpy as np

from hpcbench.config.axes import library_of
from hpcbench.plan.case import Case, Plan, planned_canary
from hpcbench.plan.order import Turn, generations, shuffled, turns
from hpcbench.records import dataclass
from hpcbench.reduce.results import Canary, CanaryRun, CaseResult, Finding
from hpcbench.reduce.stack import PassKey
from hpcbench.reduce.timing import summarise
from hpcbench.statistics.hypothesis_tests import find_slowest
from hpcbench.statistics.order import MIN_N_P5_P95
from hpcbench.statistics.steady import steady_drift
from hpcbench.texts import to_json
from hpcbench.trace.container import expected_content
from hpcbench.trace.schema import NOISE_NOTE, Header, Noise, Record, from_values
from hpcbench.trace.source import TEARDOWN_NOTE, TraceSource, noted
from hpcbench.units import by_value, digits, grouped, on_ranks, plural, rank_list


def usage_findings(items: Iterable[CaseResult]) -> Iterator[Finding]:
    used = [(item.case.label, item.usage) for item in items if item.usage is not None]
    slowed = grouped((why, label) for label, usage in used for why in usage.throttled_by)
    for why, labels in slowed.items():
        yield _note(f"clocks were lowered ({why})", labels,
                    "times are of a slower machine; see cooling, power limits and set clocks")
    for xid, labels in grouped((xid, label) for label, usage in used for xid in usage.xids).items():
        yield _note(f"a GPU has reported XID {xid}", labels,
                    "see the driver's log; that GPU may be broken")
    if labels := [label for label, usage in used if usage.ecc_errors]:
        yield _note("a GPU had memory errors", labels,
                    "watch it, and have it checked if they go on")


def _note(what: str, labels: list[str], advice: str) -> Finding:
    return Finding("HB130", "note",
                   f"{what} in {plural(len(labels), 'case')}, first {labels[0]}: {advice}")


NOT_RECORDED = "not recorded"
_SHOWN = 3
_VALUE_LENGTH = 60
_SOCKET_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES")


@dataclass(frozen=True, slots=True)
class Varying:
    """Dotted keys (``*``: any part) that vary without anything being different, and why."""

    keys: tuple[str, ...]
    reason: str


MOMENTARY = (
    Varying(("started_at", "host.uptime_s"), "the time of the run"),
    Varying(("load.*", "memory.available_bytes", "host.time_offsets.*"), "of that moment"),
    Varying(("cpu.mhz.now", "gpu.now.*"), "clocks and temperatures of that moment"),
    Varying(("clock_resolution_ns",), "measured"),
    Varying(("noise.*",), "measured; it has a check of its own"),
    Varying(("host.name", "host.boot_id", "gpu.uuid", "gpu.pci", "gpu_topology.uuids",
             "gpu_topology.pci", "gpu_topology.fabrics"), "which machine or GPU it is"),
    Varying(("process.affinity",), "which cores; how many is compared (process.affinity_cpus)"),
    Varying(("memory_bytes", "memory.total_bytes", "memory.numa_nodes.*.total_bytes",
             "hardware.memory_per_device_gb"),
            "the kernel keeps some megabytes more or less; memory.installed_gib is compared"),
    Varying(("libraries.*.*.path",), "where a file lies; which file it is, is compared (id)"),
    Varying(("network.interfaces.veth*", "network.interfaces.cali*", "network.interfaces.lxc*",
             "network.not_described"), "interfaces of whatever containers run there"),
    Varying(("variables.NCCL_COMM_ID",), "the address of the job"),
    Varying(("scheduler.*_ID", "scheduler.*JOBID", "scheduler.*NODELIST",
             "scheduler.*NAME", "scheduler.*RESTART_COUNT", "scheduler.*TOPOLOGY_ADDR"),
            "which job and which nodes it is"),
)
"""Neither compared between ranks nor part of the hash."""

RANK_SPECIFIC = (
    Varying(("process.ranks_a_core",), "the last node of a job may have fewer ranks"),
    Varying(("process.numa_nodes", "process.memory_nodes"), "ranks of one machine share it out"),
    Varying(("gpu.index", "gpu.numa_node"), "each rank has a GPU of its own"),
    Varying(("lost.*",), "what the probe lost; it has a check of its own"),
    Varying(("gpu_topology.cpus", "gpu_topology.numa_nodes"),
            "a cgroup may show each rank its own"),
    Varying(("variables.CUDA_VISIBLE_DEVICES", "variables.NVIDIA_VISIBLE_DEVICES",
             "variables.HIP_VISIBLE_DEVICES", "variables.ROCR_VISIBLE_DEVICES",
             "variables.GPU_DEVICE_ORDINAL"),
            "a launcher may show each rank its own GPU"),
)
"""Not compared between ranks; the same rank of an equal run has the same."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One dotted key on which ranks differ: value, as short text, to the ranks that have it."""

    key: str
    groups: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        """Return ``kernel.release: "6.1" on rank 0-3, "6.2" on rank 4``."""
        return f"{self.key}: {on_ranks(self.groups)}"


def environment_differences(headers: Sequence[Header]) -> list[Difference]:
    flat = {header.rank: dict(flattened(header.environment)) for header in headers}
    differences = []
    for key in sorted({key for values in flat.values() for key in values}):
        groups = by_value({rank: values.get(key, NOT_RECORDED) for rank, values in flat.items()})
        if len(groups) > 1 and not _varies(key, (*MOMENTARY, *RANK_SPECIFIC)):
            ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))
            differences.append(Difference(key, {
                value if len(value) <= _VALUE_LENGTH else value[:_VALUE_LENGTH - 4] + " ...":
                tuple(sorted(ranks)) for value, ranks in ordered}))
    return differences


def stable_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts that should stay the same from run to run: dotted key to JSON text."""
    return {key: value for key, value in flattened(environment) if not _varies(key, MOMENTARY)}


def environment_hash(environment: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits without `MOMENTARY` keys; compare the same rank of two runs."""
    stable = sorted(stable_facts(environment).items())
    return hashlib.sha256(json.dumps(stable).encode()).hexdigest()[:16]


def flattened(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, value as JSON text) of everything that is not None."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from flattened(item, f"{prefix}.{name}" if prefix else str(name))
    elif value is not None:
        yield prefix, to_json(value, sort_keys=True, ensure_ascii=False)


def _varies(key: str, tables: Iterable[Varying]) -> bool:
    return any(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), key)
               for varying in tables for pattern in varying.keys)


def environment_findings(headers: Sequence[Header], plan: Plan) -> Iterator[Finding]:
    """Yield notes on the environments of the ranks in use."""
    yield from _shared_gpus(headers, plan)
    yield from _lost(headers)
    yield from _loopback(headers)
    others = []
    for difference in environment_differences(headers):
        if difference.key == "kernel.clocksource":
            yield Finding("HB137", "note", f"the ranks' clocks are not alike ({difference}): what "
                          "reading them costs differs by up to a microsecond; use the same "
                          "clocksource on all nodes, or leave the others out")
        else:
            others.append(difference)
    if others:
        shown = "; ".join(str(item) for item in others[:_SHOWN])
        more = f"; and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        yield Finding("HB142", "note", f"the ranks' environments differ in {len(others)} "
                      f"place{'s' if len(others) > 1 else ''}: {shown}{more}; make them alike, or "
                      "read differences between ranks with that in mind")


def _shared_gpus(headers: Sequence[Header], plan: Plan) -> Iterator[Finding]:
    """HB109: no two ranks compute on one GPU, if any case may run on GPUs at all."""
    if not any(case.skip is None and case.device != "cpu" for case in plan.cases):
        return
    users = grouped((str(uuid), header.rank) for header in headers
                    if (uuid := _nested(header.environment, "gpu", "uuid")))
    for uuid, ranks in users.items():
        if len(ranks) > 1:
            yield Finding("HB109", "note", f"ranks {rank_list(ranks)} share GPU {uuid}: they take "
                          "turns, and nccl refuses it; start one rank a GPU")


def _lost(headers: Sequence[Header]) -> Iterator[Finding]:
    """HB159: a driver or library crashed or hung in the probe."""
    lines = grouped((str(line), header) for header in headers
                    for line in (_nested(header.environment, "lost") or {}).values())
    for line, asking in lines.items():
        yield Finding("HB159", "note", f"rank {rank_list(h.rank for h in asking)} "
                      f"({', '.join(sorted({h.hostname for h in asking}))}): {line}")


def _loopback(headers: Sequence[Header]) -> Iterator[Finding]:
    """HB132: ranks on several nodes do not communicate through a loopback interface."""
    if len({header.node for header in headers}) < 2:
        return
    set_to = ((name, _nested(header.environment, "variables", name), header)
              for header in headers for name in _SOCKET_VARIABLES)
    bound = grouped((f"{name}={value}", header) for name, value, header in set_to
                    if value and _names_loopback(str(value), header))
    for setting, users in bound.items():
        yield Finding("HB132", "note", f"{setting} on rank {rank_list(h.rank for h in users)} "
                      f"({', '.join(sorted({h.hostname for h in users}))}) is loopback, but there "
                      "are several nodes: set launch.interface to one that connects them")


def _names_loopback(value: str, header: Header) -> bool:
    """Return whether the first interface of a value is loopback; ``^lo`` excludes it. gloo takes a
    name, NCCL beginnings of names or, with ``=``, whole ones, UCX a list."""
    first = value.removeprefix("=").partition(",")[0].partition(":")[0]
    return bool(_nested(header.environment, "network", "interfaces", first, "loopback"))


def _nested(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


NOISY_RANK = 0.005
"""A rank is noisy from 0.5 % stolen time on: half of the 1 % to which the median of a case is
measured by default (measure.precision). Chosen here; no standard states how much is too much."""
NOISY_RATIO = 3.0
"""... and only if it is more than so many times the median of the other ranks: two loops on one
idle machine can differ by a factor of two, and what all ranks suffer is the system's."""
NOISE_ALARMS = 0.001
"""... and only if equal ranks differ so in at most that share of runs: a tenth of what comparisons
of cases may have (`reduce.comparison`), because this one is made before all of them."""
NOISY_SYSTEM = 0.01
"""The whole system is noisy if every rank loses more than 1 %, all of measure.precision."""


def check_totals(plan: Plan, cases: Sequence[CaseResult]) -> Iterator[Finding]:
    """HB140: every planned case has one outcome, and each id is planned once."""
    planned = Counter(case.case_id for case in plan.cases)
    reported = Counter(item.case.case_id for item in cases)
    lost = sorted((planned - reported) + (reported - planned))
    twice = sorted(case_id for case_id, count in planned.items() if count > 1)
    if lost or twice:
        yield Finding("HB140", "run", f"{plural(len(plan.cases), 'case')} planned, {len(cases)} "
                      f"accounted for; lost or added: {lost}, planned twice: {twice}: "
                      "plan.json was changed")


def sample_findings(
    cases: Sequence[CaseResult], headers: Sequence[Header],
) -> Iterator[Finding]:
    """HB134: too few samples for p5 and p95. HB125: ranks began many samples late."""
    few = [item for item in cases if item.statistics and item.statistics.n < MIN_N_P5_P95]
    if few:
        keys = dict.fromkeys("measure.iterations" if item.case.is_fixed else "measure.budget_s"
                             for item in few)
        yield Finding("HB134", "note", f"no p5 or p95 for {_first_of(few)}: fewer than "
                      f"{MIN_N_P5_P95} timed iterations; raise {' or '.join(keys)}")
    shares = [(item.timing.n_late / item.statistics.n, item) for item in cases
              if item.timing and item.statistics and "late_starts" in item.timing.quality]
    if shares:
        shares.sort(key=lambda pair: -pair[0])
        most = "up to " if len(shares) > 1 else ""
        yield Finding("HB125", "note", f"late starts move the median of "
                      f"{_first_of([item for _, item in shares])}: a rank began over 10 us late in "
                      f"{most}{100 * shares[0][0]:.0f} % of the samples{_crowding(headers)}")


def _first_of(items: Sequence[CaseResult]) -> str:
    more = f" and {len(items) - 1} more" if len(items) > 1 else ""
    return f"{items[0].case.label}{more}"


@dataclass(slots=True)
class ExecutedOrder:
    """Where rank 0 ran each case among those of its workers; ``skipped`` case ids could not run."""

    positions: dict[tuple[str, PassKey], int] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)

    def add(self, records: Iterable[Record]) -> None:
        for record in records:
            if (record.begin_ns, record.end_ns) == (0, 0):
                self.skipped.add(record.case_id)
            elif record.position >= 0 and record.attempt == 0:
                key = PassKey(record.launch, record.pass_index)
                self.positions[record.case_id, key] = record.position


def order_findings(plan: Plan, executed: ExecutedOrder) -> Iterator[Finding]:
    """HB135, a note: cases did not run in the order of the seed, which guards against drift."""
    measure = plan.config.get("measure", {})
    if not executed.positions or "seed" not in measure:
        return
    out_of_order = [*_misplaced(plan, executed, measure)]
    if out_of_order:
        turn, label, position, expected = out_of_order[0]
        yield Finding("HB135", "note", f"{len(out_of_order)} times a case was not run in its "
                      f"place, first {label} in launch {turn.launch + 1}, pass "
                      f"{turn.pass_index + 1}: as number {position} of its workers instead of "
                      f"{expected}: drift of the machine may meet some cases only; run again, "
                      "or set measure.order=planned to say so")


def _misplaced(
    plan: Plan, executed: ExecutedOrder, measure: Mapping[str, Any]
) -> Iterator[tuple[Turn, str, int, int]]:
    todo = generations(case for case in plan.cases if case.case_id not in executed.skipped)
    for turn, generation in product(turns(plan.launches, plan.passes), todo):
        key = PassKey(turn.launch, turn.pass_index)
        order = shuffled(generation.cases, measure["order"], measure["seed"], turn.number)
        for expected, case in enumerate(order):
            position = executed.positions.get((case.case_id, key), expected)
            if position != expected:
                yield turn, case.label, position, expected


def noise_by_rank(sources: Mapping[int, TraceSource]) -> dict[int, Noise]:
    notes = {rank: noted(source, NOISE_NOTE) for rank, source in sources.items()}
    return {rank: from_values(Noise, data[0]["detours"])
            for rank, data in notes.items() if data and data[0]}


def noise_findings(by_rank: Mapping[int, Noise], headers: Sequence[Header]) -> Iterator[Finding]:
    """Yield a note for each noisy rank (HB143), and for a noisy system (HB144). Cores that ranks of
    the job share with one another are no noise of other processes."""
    of = {header.rank: header for header in headers}
    crowded = [group for group in sharing_ranks([of[rank] for rank in by_rank if rank in of])
               if len(group.ranks) > group.cores]
    lost = {**by_rank, **{rank: noise for group in crowded
                          for rank, noise in _used_by_others(group, by_rank).items()}}
    for rank, noise in sorted(lost.items()):
        others = [other.stolen_share for number, other in lost.items() if number != rank]
        usual = float(np.median(others)) if others else None
        if (usual is not None and noise.stolen_share > max(NOISY_RATIO * usual, NOISY_RANK)
                and _stands_out(rank, lost)):
            where = f" on {of[rank].hostname}" if rank in of else ""
            yield Finding("HB143", "note", f"rank {rank}{where}: other processes "
                          f"used {_percent(noise.stolen_share)} of its core before the sweep "
                          f"({noise.n_detours} times, longest {noise.longest_ns / 1000:g} us), of "
                          f"the other ranks' {_percent(usual)}: every collective waits for it; see "
                          "what else runs there, or pin the ranks to other cores",
                          noise.stolen_share)
    shares = [noise.stolen_share for noise in by_rank.values()]
    if shares and min(shares) > NOISY_SYSTEM:
        waited = [by_rank[rank].stolen_share for group in crowded for rank in group.ranks]
        used = [noise.stolen_share for noise in lost.values()]
        who = [f"ranks waited {_from_to(waited)} of the time for cores that they share"
               if waited else "",
               f"other processes used {_from_to(used)} of each core"
               if max(used) > NOISY_SYSTEM else ""]
        yield Finding("HB144", "note", f"{', '.join(filter(None, who))}: expect long tails"
                      f"{_crowding(headers)}", max(shares))


def _used_by_others(
    group: SharingRanks, by_rank: Mapping[int, Noise],
) -> dict[int, Noise]:
    """Return the share of shared cores that others than the job took, for each rank. Ranks that are
    more than their cores keep them busy; which of them lost time is unknown."""
    noises = [by_rank[rank] for rank in group.ranks]

    def used(shares: Iterable[float]) -> float:
        return max(0.0, 1 - sum(1 - share for share in shares) / group.cores)

    parts = {len(noise.part_shares) for noise in noises}
    each = zip(*(noise.part_shares for noise in noises), strict=True) if len(parts) == 1 else ()
    share, of_parts = used(noise.stolen_share for noise in noises), tuple(map(used, each))
    return {rank: replace(by_rank[rank], stolen_share=share, part_shares=of_parts)
            for rank in group.ranks}


def _stands_out(rank: int, by_rank: Mapping[int, Noise]) -> bool:
    """Return whether a rank is significantly noisier than any other."""
    shares = [noise.part_shares for noise in by_rank.values()]
    if min(map(len, shares)) < 2 or len({*map(len, shares)}) > 1:
        return False
    slowest = find_slowest(np.array(shares), 0.0)
    return [*by_rank][slowest.row] == rank and slowest.chance <= NOISE_ALARMS


@dataclass(frozen=True, slots=True)
class SharingRanks:
    """Ranks of a node on the same cores; a cgroup may grant a fraction of ``cores``."""

    hostname: str
    ranks: tuple[int, ...]
    cores: float


def sharing_ranks(headers: Iterable[Header]) -> list[SharingRanks]:
    """Return ranks that share cores, by masks and cgroup quotas; without those of unknown mask."""
    groups_found = []
    for of_node in grouped((header.node, header) for header in headers).values():
        process = {header.rank: header.environment.get("process", {}) for header in of_node}
        joined: list[tuple[set[int], list[int]]] = []
        for rank, facts in process.items():
            mask = set(facts.get("affinity", ()))
            near = [group for group in joined if group[0] & mask]
            joined = [*(group for group in joined if not group[0] & mask),
                      (mask.union(*(cores for cores, _ in near)),
                       [*(other for _, ranks in near for other in ranks), rank])]
        joined = [group for group in joined if group[0]]
        quotas = [quota for facts in process.values()
                  if isinstance(quota := facts.get("cgroup", {}).get("cpus"), (int, float))]
        groups = [SharingRanks(of_node[0].hostname, tuple(sorted(ranks)), len(cores))
                  for cores, ranks in joined]
        wanted = sum(min(group.cores, len(group.ranks)) for group in groups)
        if quotas and min(quotas) < wanted:  # then it is the quota that all of them share
            groups = [SharingRanks(of_node[0].hostname, tuple(process), min(quotas))]
        groups_found += groups
    return groups_found


def _crowding(headers: Sequence[Header]) -> str:
    groups = sharing_ranks(headers)
    if not groups:
        return "; see what else runs there"
    fullest = max(groups, key=lambda group: len(group.ranks) / group.cores)
    n_ranks, host = len(fullest.ranks), fullest.hostname
    if n_ranks > fullest.cores:
        cores = f"{fullest.cores:.3g} {'core' if fullest.cores == 1 else 'cores'}"
        return f"; on {host} {plural(n_ranks, 'rank')} share {cores}: start fewer ranks a node"
    return f"; see what else runs on {host}"


def _from_to(shares: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys((_percent(min(shares)), _percent(max(shares)))))


def _percent(share: float) -> str:
    return f"{digits(100 * share, 2)} %"


def other_backend(
    backend: str, choices: Mapping[str, str], headers: Sequence[Header],
) -> str | None:
    """Return the transport used instead of the backend; None if no log shows any."""
    used = choices["transport"].split(" + ")
    if layer := backend.partition("ucc/tl/")[2]:
        layers = [text for text in used if "TL_" in text]
        if layers and not any(f"TL_{layer.upper()}" in text for text in layers):
            return f"{backend} was requested, UCC used {', '.join(layers)}"
    if library_of(backend, "cuda") == "nccl" and any(
            text.startswith("NET/Socket") for text in used):
        ports = sorted({name for header in headers for name, port in header.environment.get(
            "network", {}).get("infiniband", {}).items() if "ACTIVE" in str(port.get("state"))})
        if ports:
            return (f"NCCL used NET/Socket, although InfiniBand or RoCE is up ({', '.join(ports)}"
                    "): a fallback; NCCL_DEBUG=INFO states why")
    return None


def backend_findings(
    choices_by_case: Iterable[tuple[Case, Mapping[str, str]]], headers: Sequence[Header],
) -> Iterator[Finding]:
    """HB131: cases did not use the requested backend."""
    labels = grouped((other_backend(case.backend, choices, headers), case.label)
                     for case, choices in choices_by_case)
    for text, cases in labels.items():
        if text is not None:
            yield Finding("HB131", "note", f"{text} ({plural(len(cases), 'case')}, "
                          f"first {cases[0]}): their times are of "
                          "what was used")


def teardown_findings(sources: Iterable[TraceSource]) -> Iterator[Finding]:
    """HB152: workers of a rank crashed while leaving, or a case left them changed."""
    ends = Counter((source.header.rank, source.header.hostname, _how_it_ended(data))
                   for source in sources for data in noted(source, TEARDOWN_NOTE))
    for (rank, hostname, ended), times in sorted(ends.items()):
        again = f" ({times} times)" if times > 1 else ""
        yield Finding("HB152", "note", f"rank {rank} on {hostname}: {ended[0]}{again}: {ended[1]}")


def _how_it_ended(data: Mapping[str, Any]) -> tuple[str, str]:
    if "left_behind" in data:
        return (f"{data.get('case')} changed {data['left_behind']} in its worker",
                "new workers took the next case")
    return (f"{data.get('ended')} when it left the process group",
            "its cases had been recorded before, and stand; see that rank's libraries")


CANARY_NOTE = "canary"

_Run = tuple[int, list[int]]
"""One run as one rank noted it: when it began, and its durations in ns, none unless it was ok."""
_RunIndex = tuple[int, int, int]
"""Launch, pass, and the number of the run in it."""


def canary_of(sources: Mapping[int, TraceSource], world_size: int) -> Canary | None:
    """Return the canary's series, None if not recorded. A run that some rank lacks, or that was not
    ok, has no time. Raises UnreadableTrace for notes of another kind."""
    runs_by_index: dict[_RunIndex, dict[int, _Run]] = defaultdict(dict)
    for rank, source in sources.items():
        counts: Counter[tuple[int, int]] = Counter()
        with expected_content(source.path):
            for data in noted(source, CANARY_NOTE):
                turn = int(data["launch"]), int(data["pass_index"])
                index = (*turn, counts[turn])
                counts[turn] += 1
                times = data["durations_ns"] if data["status"] == "ok" else ()
                runs_by_index[index][rank] = int(data["at_ns"]), [*map(int, times)]
    if not runs_by_index:
        return None
    series = tuple(_series({index: runs for index, runs in sorted(runs_by_index.items())
                            if _is_ok(runs, world_size)}))
    drift = steady_drift(np.array([run.median_s for run in series]),
                         np.array([run.since_start_s for run in series]))
    return Canary(planned_canary(world_size).label, series,
                  len(runs_by_index) - len(series), drift.change if drift else None,
                  ("drifting",) if drift and drift.significant else (),
                  drift.tau if drift else None)


def _is_ok(runs: Mapping[int, _Run], world_size: int) -> bool:
    counts = {len(durations_ns) for _, durations_ns in runs.values()}
    return (len(runs) == world_size and len(counts) == 1
            and all(min(durations_ns, default=0) > 0 for _, durations_ns in runs.values()))


def _series(runs_by_index: Mapping[_RunIndex, Mapping[int, _Run]]) -> Iterator[CanaryRun]:
    first_ns = None
    for (launch, pass_index, _), runs in runs_by_index.items():
        at_ns, _ = runs[min(runs)]
        first_ns = at_ns if first_ns is None else first_ns
        durations_ns = np.array([durations_ns for _, durations_ns in runs.values()], dtype=np.int64)
        times = summarise(durations_ns.max(axis=0) / 1e9)
        yield CanaryRun(launch, pass_index, (at_ns - first_ns) / 1e9, times.n, times.median_s,
                        times.ci_low_s, times.ci_high_s)


def canary_findings(canary: Canary) -> Iterator[Finding]:
    if canary.n_not_ok:
        yield Finding("HB147", "note", f"{canary.n_not_ok} of {canary.n_not_ok + len(canary.runs)} "
                      f"runs of the canary (between cases, {canary.label}) were not ok on every "
                      "rank: what the machine did around them is unknown; see the traces' notes")
    if canary.drift is not None and canary.is_drifting:
        duration_s = canary.runs[-1].since_start_s
        yield Finding("HB145", "note", "the machine drifted during the sweep: the canary "
                      f"({canary.label}, between cases) changed by {100 * canary.drift:+.1f} % "
                      f"over {len(canary.runs)} runs in {duration_s:.0f} s (Kendall's tau "
                      f"{canary.tau:+.2f}; of runs that do not drift at most 1 % are reported): "
                      "compare cases of one pass only, or run on a quiet machine")
