"""What a plan is made of: `Case`s with stable ids, and the `Plan` that orders them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from hpcbench.kinds.registry import kinds
from hpcbench.plan.workload import UnknownWorkload, Workload
from hpcbench.units import equal_groups

STATUSES = ("ok", "wrong", "skipped", "failed", "timeout", "not_run")
"""Every planned case ends in exactly one of these."""
CANARY_ID = "canary"
"""The id of the small case that is measured again and again, to see the machine drift."""
DEFAULT_MODE = "isolated"
"""The timing mode that labels do not name."""


@dataclass(frozen=True, slots=True)
class Case:
    """One point of the sweep: all that is needed to run it and to label it.

    ``iterations`` is the number of timed samples of each pass, or the most of them where
    ``min_iterations`` is smaller: then the case stops when it is precise enough or its budget is
    used. A sample is ``batch`` calls (more than one in mode ``pipelined`` only).
    ``skip`` is the reason why it can run on no machine as configured; ``needs`` names what only
    a probe of the machine can tell (``"nccl"``, ``"cuda"``, ``"compiler"``). ``device`` may
    be ``"auto"``. A rank needs ``memory_bytes`` on its device and, beside them, ``host_bytes``.
    The former may be off by the share ``memory_error``; what is over a declared limit by less is
    tried, and ``note`` says so. With ``cuda_graph`` a call is the replay of a captured one.
    """

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
    validate: bool
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

    @property
    def is_fixed(self) -> bool:
        """Return whether exactly ``iterations`` samples are taken."""
        return self.min_iterations in (0, self.iterations)

    @property
    def group_size(self) -> int:
        """Return how many ranks take part in one collective."""
        return max(self.world_size // self.workload.groups, 1)

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
        """Return a one-line name for progress lines and messages."""
        title, *rest = self.workload.words(self.world_size)
        parts = [title, self.backend, self.device, *rest]
        parts += [self.mode] if self.mode != DEFAULT_MODE else []
        parts += ["cuda_graph"] if self.cuda_graph else []
        parts += [f"{key}={value}" for key, value in self.env]
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Plan:
    """The ordered cases of one job: ``launches`` times over, each of ``passes`` passes.

    ``plan_hash`` identifies what was planned; ``config`` is the resolved configuration as plain
    JSON values; ``duplicates`` counts points of the product that were the same case twice.
    """

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
    plain = {item.name: getattr(case, item.name) for item in fields(case)}
    return {**plain, "workload": case.workload.to_json()}


def case_from_json(data: Mapping[str, Any]) -> Case:
    """Rebuild one `Case`. Of a kind that is not installed its workload stays as it is stored."""
    env = tuple((str(key), str(value)) for key, value in data["env"])
    spec, work = kinds().get(data["kind"]), data["workload"]
    work = (spec.planner().workload_from_json(work) if spec else
            UnknownWorkload(work, data["kind"]))
    return Case(**{**data, "env": env, "needs": tuple(data["needs"]), "workload": work})


def planned_canary(world_size: int, timeout_s: float = 0.0, wakeup_s: float = 0.0) -> Case:
    """Return the canary of a job: a small all_reduce, whose times show drift of the machine.

    It is no case of the plan: it has a fixed count of its own, takes part in no pass and in no
    total, and is recorded as notes.
    """
    from hpcbench.kinds.collective.plan import canary  # it imports this module

    return canary(world_size, timeout_s, wakeup_s)
