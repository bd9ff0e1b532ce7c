"""How long a plan may take: an assumption to size a job with, never a result.

Time of an iteration = alpha x ceil(log2 n) + moved bytes / beta, and one more alpha term for the
barrier it starts after; of a primitive and of a training step also its flops / rate. Alpha, beta
and the rate are assumed, per device: for the CPU what gloo does with four ranks on two shared
cores, so a real node is faster. `hardware.network_bandwidth_gbps` replaces beta if it is given, but
for as many GPUs as a node has by `hardware.num_devices`.

Set-up on a GPU was never measured: its constants are assumptions, as those of its rates are.

The order of cases in a job, and what earlier attempts at it have done and need not repeat.

Cases that can share workers form a generation. Within it every pass has an order of its own. So
changes of the machine during the job (heat, other users) meet all cases alike."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcbench.plan.case import Case, Plan
from hpcbench.plan.workload import Workload
from hpcbench.records import dataclass
from hpcbench.units import grouped, plural

if TYPE_CHECKING:
    from hpcbench.config.schema import Hardware


CASE_S = 0.03
"""Assumed: agreement, buffers, expected results, journal."""
COMPILE_S = 10.0
"""Assumed of a case that compiles when it is set up: torch.compile of a few operations."""

DRAWN_PER_S: Mapping[str, float] = MappingProxyType({"cpu": 4e7, "cuda": 5e8})
"""Random numbers a second, by who draws them. CPU: measured, one of two busy cores drew 41 million
normal ones (87 million when it was free). CUDA: assumed, about 20 passes over 8 bytes each at a
tenth of the memory bandwidth of an A100; `kinds.training.run.models.model.drawn`."""
WORKERS_S: Mapping[str, float] = MappingProxyType({"cpu": 0.0, "cuda": 4.0})
"""Seconds of new workers, for each generation in each pass. CPU: they are forked within
milliseconds. CUDA: assumed, 1 to 3 s for a context, 1 to 2 s for a communicator of NCCL."""
LAUNCH_S = 3.0
"""Assumed of each launch: its template imports torch. Measured, 2 ranks on 2 free cores."""

MOST_OF_TIMEOUT = 0.5
"""Share of a case's time limit for its timed loop: set-up, checks and a slow sample come on top."""

ALPHA_S: Mapping[str, float] = MappingProxyType({"cpu": 1e-3, "cuda": 1e-4})
FLOPS_PER_S: Mapping[str, float] = MappingProxyType({"cpu": 2e10, "cuda": 1e14})
_BETA_BYTES_PER_S: Mapping[str, float] = MappingProxyType({"cpu": 3e8, "cuda": 1e10})


def case_budget_s(budget_s: float, runnable: int, passes: int, launches: int) -> float:
    """Return the seconds each run of a case may spend in its timed loop, if not fixed."""
    return budget_s / max(runnable * passes * launches, 1)


def within_timeout_s(budget_s: float, timeout_s: float) -> float:
    """Return the seconds of its budget that a case may use: a large one must not time it out."""
    return min(budget_s, MOST_OF_TIMEOUT * timeout_s)


def setup_s(work: Workload, kind: str) -> float:
    """Return the assumed seconds of a case outside its timed loop and its checks."""
    features = work.features
    return (CASE_S + COMPILE_S * features.compiled_graphs
            + features.drawn_numbers / DRAWN_PER_S[kind])


def workers_s(cases: Iterable[Case]) -> float:
    """Return the assumed seconds of new workers in one pass over these cases, in their order."""
    return sum(max(WORKERS_S[device_kind(case.device)] for case in generation.cases)
               for generation in generations(cases))


def launch_s(cases: Iterable[Case], *, inline: bool) -> float:
    """Return the assumed seconds until a launch has workers; 0 if all cases run in the ranks' own
    processes."""
    return 0.0 if inline or all(case.backend in INLINE_BACKENDS for case in cases) else LAUNCH_S


def pass_s(cases: Sequence[Case]) -> float:
    """Return how long one pass over these cases may take: their estimates, and new workers."""
    return sum(case.estimate_s for case in cases) + workers_s(cases)


def starts_s(plan: Plan, cases: Iterable[Case]) -> float:
    """Return the assumed seconds until all launches of a plan have workers for these cases."""
    return plan.launches * launch_s(cases,
                                    inline=plan.config.get("launch", {}).get("inline", False))


def plan_estimate_s(plan: Plan) -> float:
    """Return how long all passes and launches may take, with the start of each."""
    runs = [case for case in plan.cases if case.skip is None]
    return pass_s(runs) * plan.passes * plan.launches + starts_s(plan, runs)


def device_kind(device: str) -> str:
    """Return ``cuda`` or ``cpu``: whose constants a device has."""
    return "cuda" if device == "cuda" else "cpu"


def bytes_per_s(kind: str, hardware: Hardware, ranks: int) -> float:
    """Return beta: of the declared network, else the assumed one of a kind of device.

    So many ranks on GPUs as a node is declared to have are taken to be on one node."""
    gbps = hardware.network_bandwidth_gbps
    nodes = _nodes(kind, ranks, hardware.device_type, hardware.num_devices)
    return gbps * 1e9 / 8 if gbps and nodes != 1 else _BETA_BYTES_PER_S[kind]


def _nodes(kind: str, ranks: int, device_type: str | None, on_node: int | None) -> int | None:
    """Return on how many nodes so many ranks are taken to be; None where that is not declared."""
    is_known = kind == "cuda" and device_type in (None, kind) and on_node
    return math.ceil(ranks / on_node) if is_known and on_node else None


def assumed_rates(cases: Iterable[Case], hardware: Mapping[str, Any]) -> Iterator[str]:
    """Yield, of each kind of device, the rates of estimates, and on how many nodes ranks are taken
    to be; ``hardware`` is that section of the sweep file in plain values."""
    gbps = hardware.get("network_bandwidth_gbps")
    for kind, ranks in grouped((device_kind(one.device), one.world_size) for one in cases).items():
        nodes = _nodes(kind, max(ranks), hardware.get("device_type"), hardware.get("num_devices"))
        rate = gbps / 8 if gbps and nodes != 1 else _BETA_BYTES_PER_S[kind] / 1e9
        place = plural(nodes, "node") if nodes else "one node or more"
        yield (f"{kind} {FLOPS_PER_S[kind] / 1e9:,.0f} GFLOP/s a rank, {rate:g} GB/s between ranks "
               f"on {place}, {ALPHA_S[kind] * 1e3:g} ms a message")


Environment = tuple[tuple[str, str], ...]
INLINE_BACKENDS = ("mpi", "mpi/direct")
"""Backends that must run in the MPI process itself; their cases come last, not isolated."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Consecutive runnable cases that one set of workers can run, one after another."""

    env: Environment
    world_size: int
    inline: bool
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass of one launch; ``number`` counts the passes of all launches."""

    launch: int
    pass_index: int
    number: int


def turns(launches: int, passes: int) -> list[Turn]:
    return [Turn(launch, pass_index, launch * passes + pass_index)
            for launch in range(launches) for pass_index in range(passes)]


def generations(cases: Iterable[Case]) -> list[Generation]:
    """Return the runnable cases, in order, cut where they cannot share workers."""
    runnable = (case for case in cases if case.skip is None)
    return [Generation(*key, cases=tuple(group)) for key, group in groupby(runnable, lambda case: (
        case.env, case.world_size, case.backend in INLINE_BACKENDS))]


def shuffled(cases: Sequence[Case], order: str, seed: int, pass_number: int) -> list[Case]:
    """Return the order in which a generation's cases are run in one pass.

    ``pass_number`` counts the passes of all launches. ``shuffled``: a permutation drawn from the
    seed for each pair of passes; the second pass of a pair runs it backwards, so that a steady
    drift cancels. Python's generator gives the same order everywhere (random.shuffle over
    Mersenne Twister)."""
    if order == "planned":
        return list(cases)
    chosen = sorted(cases, key=lambda case: case.index)
    random.Random(f"{seed}/{pass_number // 2}").shuffle(chosen)
    return chosen[::-1] if pass_number % 2 else chosen


def ordered(cases: Sequence[Case]) -> list[Case]:
    """Return the cases, stable, by environment, largest world size and backend; inline last."""
    envs = _first_seen(case.env for case in cases)
    backends = _first_seen(case.backend for case in cases)
    return sorted(cases, key=lambda case: (
        case.backend in INLINE_BACKENDS, envs[case.env], -case.world_size,
        backends[case.backend]))


def _first_seen(values: Iterable[object]) -> dict[object, int]:
    return {value: place for place, value in enumerate(dict.fromkeys(values))}


MOST_DEATHS = 2
"""A case that the job died in so often is not run again."""


class RunKey(NamedTuple):
    """One run of one case: a pass of a launch."""

    case_id: str
    launch: int
    pass_index: int


@dataclass(frozen=True, slots=True)
class History:
    """The history of a run when an attempt begins; empty for the first one.

    Attributes:
        attempt: its number; those before it count from 0.
        finished: runs of cases that all their ranks recorded, whatever came of them.
        statuses: case id -> the statuses of its finished runs.
        skipped: ids of cases that could not run; this is probed again.
        deaths: case id -> how many attempts were ended from outside while it ran.
        run_id: of the run, "" if it is new.
        plans: hashes of the plans of all attempts, without that of now.
        changes: differences from the attempt before, in words.
        ended: whether the attempt before came to its end on all ranks, as far as it got.
        were_ok: ids of cases whose newest run was ok on all their ranks.
        profiled: ids of cases of which an attempt noted the outcome of their profile.
        retried: ids of finished cases that are run again on request, in all their passes.
        pace: time of the attempt before / the estimate of what it ran; None if it ran nothing."""

    attempt: int = 0
    finished: frozenset[RunKey] = frozenset()
    skipped: frozenset[str] = frozenset()
    deaths: Mapping[str, int] = field(default_factory=dict)
    run_id: str = ""
    plans: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    ended: bool = False
    were_ok: frozenset[str] = frozenset()
    profiled: frozenset[str] = frozenset()
    retried: frozenset[str] = frozenset()
    statuses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    pace: float | None = None

    def retrying(self, case_ids: Collection[str]) -> History:
        """Return this history as if these cases had not been run: a person asks for that."""
        again = frozenset(case_ids)
        return replace(
            self, retried=again, profiled=self.profiled - again,
            finished=frozenset(key for key in self.finished if key.case_id not in again),
            statuses={one: of_runs for one, of_runs in self.statuses.items() if one not in again},
            deaths={case_id: n for case_id, n in self.deaths.items() if case_id not in again})

    def is_left(self, case: Case, turn: Turn) -> bool:
        """Return whether the case is still to be run in this pass of this launch."""
        return RunKey(case.case_id, turn.launch, turn.pass_index) not in self.finished

    def left(self, cases: Iterable[Case], turn: Turn) -> list[Case]:
        return [case for case in cases if self.is_left(case, turn)]

    def is_profile_left(self, case: Case) -> bool:
        """Return whether a case that an earlier attempt measured has not come to be profiled."""
        return case.case_id in self.were_ok - self.profiled

    def quarantine(self, case: Case) -> str | None:
        """Return why a case is not to be run again, or None."""
        deaths = self.deaths.get(case.case_id, 0)
        if deaths < MOST_DEATHS:
            return None
        return (f"quarantined: {deaths} attempts at this run were ended from outside while it ran; "
                f"run it alone to see why: run FILE --only {case.case_id}; to run it again here: "
                "--resume FOLDER --retry failed")
