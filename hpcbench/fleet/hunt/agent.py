"""A rank of a hunt: it does what the host asks, in workers that may hang, crash or be killed.

Its own process imports no torch and waits for nobody but the host. A group's workers meet as those
of a run do, at a store of the first member's worker."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from hpcbench.config.schema import Telemetry
from hpcbench.errors import HpcbenchError, LaunchError, RankLostError
from hpcbench.fleet.hunt.rendezvous import Message, OwnPlace, Wire
from hpcbench.fleet.hunt.trials import PRECISION
from hpcbench.launch.address import own_interface, socket_variables
from hpcbench.launch.communicator import Communicator
from hpcbench.launch.launcher import StopRequests
from hpcbench.launch.messages import (
    CaseAnswer,
    CaseRequest,
    JoinRequest,
    PlainCase,
    PlainFault,
    Request,
    StoreAnswer,
    StoreRequest,
)
from hpcbench.launch.verdict import EVIDENCE, Evidence, RankOutcome
from hpcbench.launch.worker_group import (
    AnswerWait,
    Observation,
    await_answer,
    evidence_of,
)
from hpcbench.launch.worker_pool import Variables, WorkerPool
from hpcbench.launch.worker_process import WorkerProcess
from hpcbench.measurement.process import own_cores
from hpcbench.operations.gpu_nodes import nvidia_gpus
from hpcbench.plain import Plain
from hpcbench.records import dataclass
from hpcbench.telemetry.sampler import open_sampler
from hpcbench.texts import masked
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.columns import KEYS, NOT_READ, TABLES, THROTTLE_REASONS, Rows
from hpcbench.trace.schema import SAMPLE_COLUMNS, UNTIMED

_WAKEUP_S, _LEAVE_S = 0.2, 5.0
_START, _END, _FLAGS = map(SAMPLE_COLUMNS.index, ("start_ns", "end_ns", "flags"))
_PATIENCE = 10
"""So many times the limit the group itself waits: who hangs is seen from outside, before."""
SAMPLES = 4096
"""Room for a case's samples: more than any trial takes."""


@dataclass(frozen=True, slots=True)
class RankTask:
    """What a rank does in a trial: the cases, its place in the group, limits in seconds.

    ``index``: its number in the group of ``size``. ``gpu``: its GPU among those it sees, or None.
    ``uuid``: that GPU's; ``rocm``: AMD made it. ``nodes``: how many the group has. ``open_s``: what
    the first case may take beside its call, to open the group's connections."""

    number: int
    index: int
    size: int
    nodes: int
    local_rank: int
    local_size: int
    gpu: int | None
    uuid: str | None
    rocm: bool
    cases: tuple[PlainCase, ...]
    join_s: float
    open_s: float
    budget_s: float
    faults: tuple[PlainFault, ...] = ()


RANK_TASK: Plain[RankTask] = Plain(RankTask)


class _Host(Communicator):
    """The host as a communicator of a trial: it passes on that another member has failed."""

    def __init__(self, line: Wire, rank: int) -> None:
        self.rank, self.line = rank, line
        self.wakeup_fd = line.fileno()
        self._waiting: list[Message] = []
        self._ended: set[int] = set()

    def notify(self, number: int) -> None:
        self.line.send({"failed": number})

    def noticed(self, number: int) -> bool:
        self._look(0.0)
        return number in self._ended

    def next(self, timeout_s: float) -> Message | None:
        """Return the next message that is no notice, None if none comes in time."""
        if not self._waiting:
            self._look(timeout_s)
        return self._waiting.pop(0) if self._waiting else None

    def _look(self, timeout_s: float) -> None:
        """Take in what has come; what the host said before it left is heard first."""
        try:
            while (message := self.line.receive(timeout_s)) is not None:
                timeout_s = 0.0
                if message.get("do") == "end":
                    self._ended.add(int(message["number"]))
                else:
                    self._waiting.append(message)
        except RankLostError:
            if not self._waiting:
                raise


class Agent:
    """Serves the host until it says how the hunt ends."""

    def __init__(
        self, line: Wire, place: OwnPlace, pool: WorkerPool, stop: StopRequests,
    ) -> None:
        self._host, self._place = _Host(line, place.rank), place
        self._pool, self._stop = pool, stop

    def serve(self) -> int:
        """Return the exit code that the host gives. Raises RankLostError if the host is gone."""
        while not self._stop.now:
            message = self._host.next(_WAKEUP_S)
            if message is None:
                continue
            if message["do"] == "leave":
                return int(message["code"])
            if message["do"] == "facts":
                self._host.line.send({"number": message["number"], "facts": self._facts()})
            elif message["do"] == "trial":
                self._try(RANK_TASK.read(message["task"]))
        raise RankLostError(f"rank {self._place.rank} was stopped by {self._stop.now}")

    def _facts(self) -> Message:
        """Return what this rank's machine has, or with ``problem`` why it does not say."""
        try:
            facts = self._pool.facts(())
        except (LaunchError, OSError) as error:
            return {"problem": masked(str(error), os.environ)}
        cuda = {name: facts["cuda"][name] for name in (
            "uuids", "visible", "names", "no_code", "reason")}
        return {"cuda": cuda, "device_nodes": nvidia_gpus(), "cores": own_cores(),
                "has_nccl": bool(facts["built"]["nccl"]), "rocm": "hip" in facts["versions"]}

    def _try(self, task: RankTask) -> None:
        """Carry a trial out, and report it."""
        results: list[Message] = []
        with self._telemetry(task) as readings:
            try:
                variables = self._variables(task)
                worker = self._pool.start_worker(variables, limited=False, stop=self._stop)
            except (HpcbenchError, OSError) as error:
                self._host.notify(task.number)
                results = [_result("", Observation(Evidence(
                    self._place.rank, RankOutcome.DIED, masked(str(error), os.environ))))]
            else:
                results = self._in_worker(worker, task)
        self._host.line.send({"number": task.number, "results": results, "readings": readings})

    def _variables(self, task: RankTask) -> Variables:
        """Return the variables that keep sockets to the interface that leads to the host, or to
        loopback within a node. Raises LaunchError."""
        interface = own_interface(("",) * task.nodes, None, self._host.line.peer, os.environ)
        return tuple((name, value) for name, value in socket_variables(interface).items()
                     if name not in os.environ)

    def _in_worker(self, worker: WorkerProcess, task: RankTask) -> list[Message]:
        """Return the results of the cases up to the first that did not end well."""
        results = []
        joined = self._join(worker, task)
        is_well = joined.evidence.outcome is RankOutcome.OK
        if not is_well:
            results.append(_result("", joined))
        for number, case in enumerate(task.cases if is_well else ()):
            at = 1000 * task.number + number
            limit_s = case.timeout_s + (task.open_s if number == 0 else 0.0)
            worker.progress.begin(at)
            began_ns = time.perf_counter_ns()
            seen = self._request(worker, task, limit_s, CaseRequest(
                case, at, case.device, task.faults, ClockModel.identity(began_ns),
                task.budget_s, PRECISION))
            problem = worker.progress.problem(at, began_ns, time.perf_counter_ns())
            results.append(_result(case.case_id, seen, () if problem else _durations(worker)))
            is_well = seen.evidence.outcome is RankOutcome.OK
            if not is_well:
                break
        if is_well:
            worker.leave(_LEAVE_S)
        else:
            worker.kill()
        return results

    def _join(self, worker: WorkerProcess, task: RankTask) -> Observation:
        """Have the worker meet the others of its group at the first one's store."""
        worker.progress.begin(0)
        line, limit_s = self._host.line, task.join_s
        address, port = line.address if task.nodes > 1 else "127.0.0.1", 0
        if task.index == 0:
            seen = self._request(worker, task, limit_s, StoreRequest(address, (0,), limit_s))
            if not isinstance(seen.answer, StoreAnswer):
                return seen
            port = seen.answer.port
            if task.size > 1:
                line.send({"number": task.number, "store": [address, port]})
        else:
            deadline = time.monotonic() + limit_s
            while (message := self._host.next(_WAKEUP_S)) is None or (
                    message.get("number") != task.number):  # of a trial that is over
                if self._host.noticed(task.number) or time.monotonic() >= deadline:
                    return Observation(evidence_of(
                        self._place.rank, worker, RankOutcome.COMMUNICATION,
                        "the first rank of the group has opened no store"))
            address, port = message["store"]
        return self._request(worker, task, limit_s, JoinRequest(
            address, port, task.index, task.size, task.local_rank, task.local_size, task.gpu,
            _PATIENCE * limit_s))

    def _request(
        self, worker: WorkerProcess, task: RankTask, limit_s: float, request: Request,
    ) -> Observation:
        worker.send(request)
        return await_answer(worker, AnswerWait(
            self._host, task.number, limit_s, _WAKEUP_S, self._stop))

    @contextlib.contextmanager
    def _telemetry(self, task: RankTask) -> Iterator[dict[str, Any]]:
        """Give a mapping that has, after the block, what was read of the machine meanwhile."""
        readings: dict[str, Any] = {}
        if task.size > 1:  # of what a rank does alone, nobody else is the cause
            yield readings
            return
        with open_sampler(Telemetry(), local_rank=task.local_rank, gpu_uuid=task.uuid,
                          rocm=task.rocm) as sampler:
            sampler.mark()
            yield readings
            sampler.mark()
            readings |= _summary(sampler.drain())


_HARDWARE_SLOWS = sum(bit for bit, name in THROTTLE_REASONS.items() if name != "power cap")
"""A power cap is how GPUs are run; the others are heat, or a supply that does not suffice."""


def _summary(tables: Mapping[str, Rows]) -> dict[str, Any]:
    """Return ``clock`` in Hz, ``ecc_uncorrected`` and the share ``throttled`` of the rank's GPU;
    without a GPU the clock of its cores. What was not read is left out."""
    found: dict[str, Any] = {}
    for table, column, per_hz in (("gpu", "sm_mhz", 1e6), ("frequency", "mean_khz", 1e3)):
        if (clocks := _column(tables, table, column)) and "clock" not in found:
            found["clock"] = median(clocks) * per_hz
    if counts := _column(tables, "gpu", "ecc_uncorrected"):
        found["ecc_uncorrected"] = max(counts)
    if reasons := _column(tables, "gpu", "throttle_reasons"):
        found["throttled"] = sum(bool(one & _HARDWARE_SLOWS) for one in reasons) / len(reasons)
    return found


def _column(tables: Mapping[str, Rows], table: str, column: str) -> list[int]:
    """Return the values of a column that were read."""
    if table not in tables:
        return []
    values = tables[table][:, (*KEYS, *TABLES[table].names).index(column)]
    kept: list[int] = values[values != NOT_READ].tolist()
    return kept


def _durations(worker: WorkerProcess) -> Sequence[int]:
    """Return the ns of each sample: the device's clock does not see what a rank waits for."""
    rows = worker.progress.rows()
    timed = rows[(rows[:, _FLAGS] & UNTIMED) == 0]
    durations: list[int] = (timed[:, _END] - timed[:, _START]).tolist()
    return durations


def _result(case_id: str, seen: Observation, durations_ns: Sequence[int] = ()) -> Message:
    return {"case": case_id, "evidence": EVIDENCE.write(seen.evidence),
            "durations_ns": list(durations_ns) if isinstance(seen.answer, CaseAnswer) else []}
