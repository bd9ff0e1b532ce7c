"""The parts of a plan: `Case`s with stable ids, and the `Plan` that orders them."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbench.config.axes import UNCHECKED, Checks, library_of
from hpcbench.errors import PluginError
from hpcbench.kinds.registry import kinds, spec_of
from hpcbench.operations.arrival import TOGETHER, ArrivalPattern
from hpcbench.plan.workload import UnknownWorkload, Workload
from hpcbench.records import dataclass
from hpcbench.texts import as_field
from hpcbench.units import equal_groups

if TYPE_CHECKING:
    from hpcbench.config.schema import Config
    from hpcbench.config.section import Block, Fault

STATUSES = ("ok", "wrong", "skipped", "failed", "timeout", "not_run")
"""Every planned case ends in exactly one of these."""
_WORST_FIRST = ("timeout", "failed", "wrong", "not_run", "skipped", "ok")
PROGRAM_KIND = "program"
"""The kind of the cases that a user's program measured itself. No package has it: nothing plans or
runs its cases, and nothing is derived of them."""
DEFAULT_MODE = "isolated"
"""The timing mode that labels do not name."""


def status_of_run(of_ranks: Iterable[str]) -> str:
    """Return the status of one run of a case: the worst of any rank.

    A skip that not all ranks want is none: they contradict one another."""
    statuses = set(of_ranks)
    worst = min(statuses, key=_WORST_FIRST.index)
    return "ok" if worst == "skipped" and len(statuses) > 1 else worst


def status_of_case(of_runs: Iterable[str]) -> str:
    """Return the status of a case by those of its runs, in all passes, launches and attempts.

    It is the worst, but runs that were left out take nothing from one that is ok."""
    statuses = set(of_runs)
    if statuses <= {"ok", "not_run", "skipped"} and "ok" in statuses:
        return "ok"
    return min(statuses, key=_WORST_FIRST.index)


@dataclass(frozen=True, slots=True)
class Case:
    """One point of the sweep: all that is needed to run it and to label it.

    ``iterations`` is the number of timed samples of each pass, or the most of them where
    ``min_iterations`` is smaller: then the case stops when it is precise enough or its budget is
    used. A sample is ``batch`` calls (more than one in mode ``pipelined`` only).
    ``skip`` is the reason why it can run on no machine as configured; ``needs`` names what only
    a probe of the machine can show (``"nccl"``, ``"cuda"``, ``"compiler"``). ``device`` may
    be ``"auto"``. A rank needs ``memory_bytes`` on its device and, beside them, ``host_bytes``.
    The former may be off by the share ``memory_error``; what is over a declared limit by less is
    tried, and ``note`` states it. With ``cuda_graph`` a call is the replay of a captured one.
    ``marks`` are what tells it from cases whose label is the same but for them."""

    case_id: str
    index: int
    block: str
    kind: str
    backend: str
    device: str
    world_size: int
    env: tuple[tuple[str, str], ...]
    mode: str
    warmup: int
    iterations: int
    check: Checks
    timeout_s: float
    wakeup_s: float
    workload: Workload
    skip: str | None
    needs: tuple[str, ...]
    estimate_s: float
    memory_bytes: int
    host_bytes: int = 0
    min_iterations: int = 0
    batch: int = 1
    memory_error: float = 0.0
    note: str = ""
    cuda_graph: bool = False
    arrival: ArrivalPattern = TOGETHER
    marks: str = ""

    @property
    def validate(self) -> bool:
        """Return whether results are checked."""
        return self.check.is_on

    @property
    def checks(self) -> int:
        """Return `Checks.further`."""
        return self.check.further

    @property
    def single_calls(self) -> tuple[int, int]:
        """Return how many calls are made for their check alone, before and after all others."""
        before = int(self.validate and self.batch > 1)
        return before, max(before, self.checks)

    @property
    def is_fixed(self) -> bool:
        """Return whether exactly ``iterations`` samples are taken."""
        return self.min_iterations in (0, self.iterations)

    @property
    def library(self) -> str:
        """Return the library of its backend on its device: ``gloo`` of torch:cpu:gloo."""
        return library_of(self.backend, self.device)

    def may_have(self, fault: Fault) -> bool:
        """Return whether a fault is meant for this case, on whatever rank, and can happen in it."""
        return (fault.case == self.case_id or fnmatchcase(self.label, fault.case)) and (
            fault.kind != "slow_samples" or self.workload.features.has_whole_samples)

    @property
    def group_size(self) -> int:
        """Return how many ranks take part in one collective."""
        return max(self.world_size // self.workload.groups, 1)

    @property
    def sends_nothing(self) -> bool:
        """Return whether it is one collective of one rank."""
        return self.group_size == 1 and any(call.is_case for call in self.workload.features.calls)

    @property
    def group_span(self) -> int:
        """Return how many ranks lie from the first to the last one of a group, these included."""
        return (self.group_size - 1) * self.workload.group_stride + 1

    @property
    def group_ranks(self) -> tuple[range, ...]:
        """Return the ranks of each group, in order."""
        work = self.workload
        return equal_groups(self.world_size, work.groups, work.group_stride)

    def host_needs(self, device: str) -> int:
        """Return the bytes that a rank needs of the host if the case runs on ``device``."""
        return self.host_bytes + (0 if device == "cuda" else self.memory_bytes)

    @property
    def label(self) -> str:
        """Return a one-line name for progress lines and messages: its words are from outside."""
        title, *rest = self.workload.label(self.world_size).words
        parts = [title, self.backend, self.device, *rest]
        parts += [self.mode] if self.mode != DEFAULT_MODE else []
        parts += ["cuda_graph"] if self.cuda_graph else []
        parts += [self.check.text] if self.checks else []
        parts += [self.arrival.label] if self.arrival != TOGETHER else []
        parts += [f"{key}={value}" for key, value in self.env]
        parts += [self.marks]
        return as_field(" ".join(filter(None, parts)))  # a program's case may have no backend

    @property
    def unlabelled(self) -> tuple[str, ...]:
        """Return the settings that the label does not have, each one word."""
        least = () if self.is_fixed else (f"min_iterations={self.min_iterations}",)
        return (f"validate={str(self.check.plain).lower()}", f"warmup={self.warmup}",
                f"iterations={self.iterations}", *least, f"poll_interval_s={self.wakeup_s:g}",
                *(word for word in self.marks.split() if word.startswith("id=")))


@dataclass(frozen=True, slots=True)
class Plan:
    """The ordered cases of one job: ``launches`` times over, each of ``passes`` passes.

    ``plan_hash`` identifies what was planned; ``config`` is the resolved configuration as plain
    JSON values; ``duplicates`` counts points of the product that were the same case twice."""

    name: str
    world_size: int
    passes: int
    cases: tuple[Case, ...]
    duplicates: int
    config: Mapping[str, Any]
    plan_hash: str
    launches: int = 1

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of cases that there are, each once."""
        return tuple(sorted({case.kind for case in self.cases}))

    @property
    def has_late_ranks(self) -> bool:
        """Return whether ranks of some case enter late on purpose."""
        return any(case.arrival != TOGETHER for case in self.cases)


def case_id(parameters: Mapping[str, Any]) -> str:
    """Return the 12-hex-digit id of a case: the hash of its canonical parameters."""
    text = json.dumps(parameters, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return plain JSON values; `plan_from_json` is the inverse."""
    plain = {item.name: getattr(plan, item.name) for item in fields(plan)}
    return {**plain, "cases": [case_to_json(case) for case in plan.cases]}


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """Rebuild a `Plan` from `plan_to_json`'s values. Raises KeyError or TypeError if foreign."""
    cases = tuple(case_from_json(item) for item in data["cases"])
    return Plan(**{**data, "cases": cases})


def case_to_json(case: Case) -> dict[str, Any]:
    """Return one case as plain JSON values; `case_from_json` is the inverse."""
    plain = {"validate" if item.name == "check" else item.name: getattr(case, item.name)
             for item in fields(case)}
    if not case.marks:
        del plain["marks"]
    return {**plain, "validate": case.validate, "workload": case.workload.to_json(),
            "arrival": case.arrival.text, "checks": case.checks}


def case_from_json(data: Mapping[str, Any]) -> Case:
    """Rebuild one `Case`. If its kind is not installed, its workload stays as stored."""
    env = tuple((str(key), str(value)) for key, value in data["env"])
    kind, work = data["kind"], data["workload"]
    work = (planner_of(kind).workload_from_json(work) if kind in kinds() else
            UnknownWorkload(work, kind))
    rest = {key: value for key, value in data.items() if key not in ("validate", "checks")}
    return Case(**{**rest, "env": env, "needs": tuple(data["needs"]), "workload": work,
                   "check": Checks(data["validate"], data.get("checks", 0)),
                   "arrival": ArrivalPattern.from_text(data.get("arrival", TOGETHER.text))})


_CANARY_ITERATIONS, _CANARY_RANK_CALLS = 20, 640
"""It is called less often above so many calls by all ranks together: a ring has a step a rank."""
_FEWEST_ITERATIONS = 6
"""Fewer have no interval of 95 % (`statistics.interval`)."""


def _stored_cases() -> dict[str, Any]:
    cases: dict[str, Any] = json.loads(Path(__file__).with_name("canary.json").read_bytes())
    return cases


def stray_case(case: Case) -> Case:
    """Return another collective than is planned, for tests: a broadcast, or a barrier."""
    cases, work = _stored_cases(), case.workload
    called = cases["stray"]["barrier" if work.name == "broadcast" else "broadcast"]
    return replace(planned_canary(case.world_size), workload=planner_of(
        cases["canary"]["kind"]).workload_from_json({
            **called, "dtype": work.dtype, "count": max(work.to_json().get("count", 1), 1)}))


def planned_canary(world_size: int, timeout_s: float = 0.0, wakeup_s: float = 0.0) -> Case:
    """Return the canary of a job: a small all_reduce, whose times show drift of the machine.

    It is no case of the plan: it has a fixed count of its own, takes part in no pass and in no
    total, and is recorded as notes. It is stored as data, so that planning imports no kind."""
    stored = _stored_cases()["canary"]
    iterations = max(_FEWEST_ITERATIONS,
                     min(_CANARY_ITERATIONS, _CANARY_RANK_CALLS // world_size))
    return case_from_json({
        **stored, "world_size": world_size, "timeout_s": timeout_s, "wakeup_s": wakeup_s,
        "iterations": iterations, "min_iterations": iterations})


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The inputs of a plan: the configuration, and the number of ranks."""

    config: Config
    world_size: int


class Planner(ABC):
    """Plans the cases of one kind. One object serves one plan, so it may remember what it loads."""

    @abstractmethod
    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return the number of values of each axis but ``env``, without writing the product out."""

    @abstractmethod
    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        """Yield the case of every point. Raises ConfigError that lists every unknown name."""

    def problems(self, block: Block) -> Iterator[str]:
        """Yield ``key: message`` of each unknown name in a block; `cases` refuses them.

        They are reported together with the problems of blocks that cannot be read."""
        yield from ()

    @abstractmethod
    def workload_from_json(self, data: Mapping[str, Any]) -> Workload:
        """Rebuild a workload from `Workload.to_json`, also from that of earlier versions."""

    def advice(self, work: Workload, available_bytes: int) -> str:
        """Return in words what would fit into so much memory; "" where unknown."""
        return ""


class UnusablePlanner(Planner):
    """Stands for a planner of a plug-in: one skipped case for each block, with the reason.

    Stored cases stay as they were stored."""

    def __init__(self, kind: str, problem: str) -> None:
        self._kind, self._problem = kind, problem

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return no axis: which of the block's keys are axes is unknown."""
        return {}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        from hpcbench.config.section import Block as Usual

        keys = block.model_dump(mode="json", exclude=set(Usual.model_fields))
        identity = block.model_dump(mode="json", exclude={"name"})
        config = job.config
        yield Case(
            case_id=case_id({**identity, "job_size": job.world_size}), index=0, block=title,
            kind=self._kind, backend=block.backend[0], device=block.device[0],
            world_size=job.world_size, env=(), mode=config.measure.mode, warmup=0, iterations=1,
            check=UNCHECKED, timeout_s=config.launch.timeout_s,
            wakeup_s=config.launch.poll_interval_s, needs=(), estimate_s=0.0,
            workload=UnknownWorkload(keys, self._kind),
            skip=f"kind {self._kind} cannot be used: {self._problem}", memory_bytes=0)

    def workload_from_json(self, data: Mapping[str, Any]) -> UnknownWorkload:
        return UnknownWorkload(data, self._kind)


def planner_of(kind: str) -> Planner:
    """Return a new planner; for a kind that cannot be used, or is not here, a stand-in.

    The stand-in makes each block one skipped case, with the reason."""
    spec = spec_of(kind)

    def stand_in(problem: str) -> Planner:
        return UnusablePlanner(kind, problem)

    if spec.is_plugin:
        try:
            spec.block_class()
        except PluginError as error:
            return stand_in(str(error))
    return spec.guarded("planner", spec.planner_path, stand_in)
