"""What a plan is made of: `Case`s with stable ids, and the `Plan` that orders them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

STATUSES = ("ok", "wrong", "skipped", "failed", "timeout", "not_run")
"""Every planned case ends in exactly one of these."""
DEFAULT_MODE = "isolated"
"""The timing mode that labels do not name."""
_TWO_FORMS = ("all_gather", "reduce_scatter")
_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
Option = str | int | bool


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective operation, sized as nccl-tests sizes it (docs/method.md).

    ``count`` is nccl-tests' count column, in elements: the whole buffer for all_reduce, broadcast,
    reduce and send_recv, each rank's part for all_gather, reduce_scatter, all_to_all, gather and
    scatter (the largest part if ``split`` is not even), 0 for barrier. ``size_bytes`` is the size
    after rounding, ``requested_bytes`` what the sweep asked for. ``op``, ``root`` and ``in_place``
    are None where the collective has no such option; a barrier moves no data, its dtype is uint8
    by convention. ``groups`` equal groups of consecutive ranks run it at the same time; sizes,
    counts and ``root`` are those of one group.
    """

    collective: str
    dtype: str
    op: str | None
    root: int | None
    in_place: bool | None
    requested_bytes: int
    size_bytes: int
    count: int
    split: str = "even"
    groups: int = 1

    @property
    def name(self) -> str:
        """Return what is called: ``all_reduce``."""
        return self.collective

    def collectives(self) -> tuple[Collective, ...]:
        """Return the collectives that the workload calls: this one."""
        return (self,)

    def needs(self) -> tuple[str, ...]:
        """Return what it needs of a machine beside backend and device: nothing."""
        return ()

    def words(self, world_size: int) -> list[str]:
        """Return what tells it from others, for labels; backend and device go behind the 1st."""
        parts = [self.collective]
        parts += [self.dtype] if self.collective != "barrier" else []
        parts += [self.op] if self.op else []
        parts += [f"root={self.root}"] if self.root else []
        parts += [f"{self.size_bytes}B"] if self.collective != "barrier" else []
        parts += ["in_place"] if self.in_place and self.collective in _TWO_FORMS else []
        parts += [f"split={self.split}"] if self.split != "even" else []
        parts += [f"n={world_size}"]
        parts += [f"groups={self.groups}"] if self.groups != 1 else []
        return parts


@dataclass(frozen=True, slots=True)
class Primitive:
    """One distributed primitive: communication and matrix products together (docs/primitives.md).

    ``m``, ``n``, ``k`` are those of the global problem; ``shape`` says what they were derived from
    (``llama3-8b mlp_up tp=8``; several models if equal), empty where they were given. ``order`` is
    which comes first, communication or product. ``options`` are sorted by name: those of the
    implementation and of the primitive. What follows is told by the primitive's own file when the
    plan is made, so that results are read without it: ``flops`` of one call on the rank that has
    most to do, ``total_flops`` of all ranks, ``size_bytes`` and ``wire_bytes``: what the call
    communicates as nccl-tests' sizes, summed, and times their busbw factors; ``inputs`` and
    ``runner`` are ``module:class`` of the inputs and of the implementation. ``calls`` names the
    collectives. The implementation runs on ``devices`` only, needs Python ``modules`` beside torch,
    and a compiler if it ``compiles`` when it is set up.
    """

    primitive: str
    implementation: str
    order: str
    options: tuple[tuple[str, Option], ...]
    dtype: str
    m: int
    n: int
    k: int
    shape: str
    flops: int
    total_flops: int
    size_bytes: int
    wire_bytes: int
    calls: tuple[str, ...]
    inputs: str
    runner: str
    groups: int = 1
    devices: tuple[str, ...] = ("cpu", "cuda")
    modules: tuple[str, ...] = ()
    compiles: bool = False

    @property
    def name(self) -> str:
        """Return what is called: ``tp_columnwise``."""
        return self.primitive

    def collectives(self) -> tuple[Collective, ...]:
        """Return the collectives that the workload calls, without their sizes."""
        split = str(dict(self.options).get("split", "even"))
        return tuple(Collective(
            collective=name, dtype=self.dtype, op="sum" if name in _REDUCTIONS else None,
            root=None, in_place=name == "all_reduce", requested_bytes=0, size_bytes=0, count=0,
            split=split if name == "all_to_all" else "even") for name in self.calls)

    def needs(self) -> tuple[str, ...]:
        """Return what it needs of a machine beside backend and device: modules, a compiler."""
        return (*self.modules, *(("compiler",) if self.compiles else ()))

    def option(self, name: str) -> Option:
        """Return the value of an option. Raises KeyError."""
        return dict(self.options)[name]

    def words(self, world_size: int) -> list[str]:
        """Return what tells it from others, for labels; backend and device go behind the 1st."""
        return [f"{self.primitive} {self.implementation}", self.dtype,
                f"m={self.m}", f"n={self.n}", f"k={self.k}", self.order,
                *(f"{name}={value}" for name, value in self.options), f"ranks={world_size}"]


Workload = Collective | Primitive


@dataclass(frozen=True, slots=True)
class Case:
    """One point of the sweep: all that is needed to run it and to label it.

    ``iterations`` is the number of timed samples of each pass, or the most of them where
    ``min_iterations`` is smaller: then the case stops when it is precise enough or its budget is
    used. A sample is ``batch`` calls (more than one in mode ``pipelined`` only).
    ``skip`` is the reason why it can run nowhere as asked, known without a machine; ``needs``
    names what only the machine can tell (``"nccl"``, ``"cuda"``, ``"compiler"``). ``device`` may
    be ``"auto"``. A rank needs ``memory_bytes`` on its device and, beside them, ``host_bytes``.
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

    @property
    def is_fixed(self) -> bool:
        """Return whether exactly ``iterations`` samples are taken."""
        return self.min_iterations in (0, self.iterations)

    @property
    def group_size(self) -> int:
        """Return how many ranks take part in one collective."""
        return max(self.world_size // self.workload.groups, 1)

    def host_needs(self, device: str) -> int:
        """Return the bytes that a rank needs of the host if the case runs on ``device``."""
        return self.host_bytes + (0 if device == "cuda" else self.memory_bytes)

    @property
    def label(self) -> str:
        """Return a one-line name for progress lines and messages."""
        title, *rest = self.workload.words(self.world_size)
        parts = [title, self.backend, self.device, *rest]
        parts += [self.mode] if self.mode != DEFAULT_MODE else []
        parts += [f"{key}={value}" for key, value in self.env]
        return " ".join(parts)

    @property
    def collective(self) -> Collective:
        """Return the workload of a collective. Raises TypeError of another kind."""
        if not isinstance(self.workload, Collective):
            raise TypeError(f"{self.label} is no collective")
        return self.workload

    @property
    def primitive(self) -> Primitive:
        """Return the workload of a primitive. Raises TypeError of another kind."""
        if not isinstance(self.workload, Primitive):
            raise TypeError(f"{self.label} is no primitive")
        return self.workload


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


def case_id(parameters: Mapping[str, Any]) -> str:
    """Return the 12-hex-digit id of a case: the hash of its canonical parameters."""
    text = json.dumps(parameters, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return plain JSON values; `plan_from_json` is the inverse."""
    return asdict(plan)


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """Rebuild a `Plan` from `plan_to_json`'s values. Raises KeyError or TypeError if foreign."""
    cases = tuple(case_from_json(item) for item in data["cases"])
    return Plan(**{**data, "cases": cases})


def case_to_json(case: Case) -> dict[str, Any]:
    """Return one case as plain JSON values; `case_from_json` is the inverse."""
    return asdict(case)


def case_from_json(data: Mapping[str, Any]) -> Case:
    """Rebuild one `Case`."""
    env = tuple((str(key), str(value)) for key, value in data["env"])
    return Case(**{**data, "env": env, "needs": tuple(data["needs"]),
                   "workload": _workload_from_json(data["workload"])})


def _workload_from_json(data: Mapping[str, Any]) -> Workload:
    if "primitive" not in data:
        return Collective(**data)
    options = tuple((str(name), value) for name, value in data["options"])
    several = {name: tuple(data[name]) for name in ("calls", "devices", "modules")}
    return Primitive(**{**data, **several, "options": options})
