"""A worker: it joins the process group, then takes a case, sets it up, measures, answers.

A worker owns torch, the device and the process group. It is disposable: any failure is answered
if it can be, and its supervisor ends it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from hpcbench.backends import groups
from hpcbench.backends.devices import (
    AnyDevice,
    captured,
    classify,
    one_line,
    open_device,
    out_of_memory,
)
from hpcbench.backends.facts import gather_facts
from hpcbench.backends.process_state import changed, process_state
from hpcbench.errors import CaseError, Skip
from hpcbench.launch import messages
from hpcbench.launch.communicator import InlineComms, listener_on
from hpcbench.launch.verdict import RankOutcome
from hpcbench.measurement import loop
from hpcbench.measurement.control import Control, SharedProgress, WorkerPhase
from hpcbench.measurement.faults import (
    after_call,
    before_call,
    before_timed_calls,
    wrong_operations,
)
from hpcbench.measurement.runner import opened, runner_of
from hpcbench.operations.arrival import TOGETHER
from hpcbench.operations.place import AnyOperation, CanSlowDown, Place, Stepping, close
from hpcbench.plan.case import Case, stray_case
from hpcbench.plan.order import INLINE_BACKENDS
from hpcbench.profiling.profiled_cases import RankProfile, write_rank_file
from hpcbench.statistics.stopping import LEAST_PASS_S, StopRule
from hpcbench.texts import masked_line, print_traceback
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.schema import HAS_NO_CHECK, NO_COMMUNICATOR


class Worker:
    """The process group and the groups under test of one worker, one generation long."""

    def __init__(
        self, progress: SharedProgress, mpi: InlineComms | None = None, *, supervised: bool = False,
    ) -> None:
        """``mpi`` holds communicators of all workers' processes, if they are MPI processes.

        ``supervised``: another process ends this one when a rank that it waits for is gone."""
        self._progress = progress
        self._mpi = mpi
        self._supervised = supervised
        self._workers_control: Control = groups.GlooControl()
        self._store: dist.TCPStore | None = None
        self._membership: messages.JoinRequest | None = None
        self._groups: dict[tuple[object, ...], Any] = {}
        self._slack_ns = 0
        self._devices: dict[str, AnyDevice] = {}
        self._runner = cache(runner_of)

    def answer(self, request: messages.Request) -> messages.Answer:
        """Carry out one request; an exception becomes an answer with its kind and first line."""
        try:
            return self._carry_out(request)
        except Skip as skip:
            return messages.FailureAnswer(RankOutcome.SKIPPED, masked_line(str(skip), os.environ))
        except Exception as error:  # the top level of the worker process
            print_traceback(os.environ)
            return messages.FailureAnswer(RankOutcome(classify(error)), one_line(error),
                                          out_of_memory(error))

    def _carry_out(self, request: messages.Request) -> messages.Answer:
        if isinstance(request, messages.CaseRequest):
            return self._run_case(request)
        if isinstance(request, messages.ProfileRequest):
            return self._profile(request)
        if isinstance(request, messages.FactsRequest):
            return messages.FactsAnswer(gather_facts(request.tools, request.limit_s))
        if isinstance(request, messages.StoreRequest):
            self._store = groups.open_store(
                listener_on(request.address, request.ports), request.timeout_s)
            return messages.StoreAnswer(self._store.port)
        if isinstance(request, messages.JoinRequest):
            return self._join(request)
        if isinstance(request, messages.DryRunRequest):
            return self._dry_run(request.case)
        raise CaseError(f"unknown request {request!r}")

    def _dry_run(self, case: Case) -> messages.DryRunAnswer:
        """Set the case up and call it, as rank 0 of a world that does not exist."""
        from hpcbench.backends.dry_step import dry_step  # private names of torch: not for others

        runner = self._runner(case.kind)
        return messages.DryRunAnswer(*dry_step(
            case, lambda place: opened(runner, case.workload, place, validate=False)))

    def _join(self, request: messages.JoinRequest) -> messages.DoneAnswer:
        """Join the group of gloo over all workers of this generation; choose what lines them up."""
        self._progress.mark(WorkerPhase.JOIN)
        self._membership = request
        timeout = timedelta(seconds=request.timeout_s)
        os.environ.update(
            MASTER_ADDR=request.address, MASTER_PORT=str(request.port), RANK=str(request.rank),
            WORLD_SIZE=str(request.world_size), LOCAL_RANK=str(request.local_rank))
        store = self._store or dist.TCPStore(
            request.address, request.port, is_master=False, timeout=timeout)
        dist.init_process_group(
            "gloo", store=store, rank=request.rank, world_size=request.world_size,
            timeout=timeout)
        groups.host_barrier()
        if self._supervised and 1 < request.world_size <= request.local_size:
            self._workers_control = groups.control_of_node(
                request.rank, request.world_size, request.timeout_s)
        self._progress.mark(WorkerPhase.IDLE)
        return messages.DoneAnswer()

    @property
    def _member(self) -> messages.JoinRequest:
        """This worker's place in the process group of its generation."""
        assert self._membership is not None
        return self._membership

    def _run_case(self, request: messages.CaseRequest) -> messages.CaseAnswer:
        """Set the case up, measure it, and return the answer that the supervisor records."""
        begin_ns, case, before = time.perf_counter_ns(), request.case, process_state()
        self._progress.begin(request.number)
        self._progress.mark(WorkerPhase.SETUP)
        device = self._device(request.device)
        communicator_ns = self._open_group(case, device)
        with self._opened(case, device, validate=case.validate) as operation:
            checked = case.validate and self._all_check(case, operation)
            schedule = loop.SampleSchedule(
                case.warmup, case.batch, checked, f"{case.case_id}/{request.number}",
                case.workload.features.settles, case.single_calls, case.check.has_every)
            measured = loop.measure(operation, device, self._progress, schedule,
                                    self._surroundings(request, operation))
            end_ns = time.perf_counter_ns()
            memory = (operation.place.group.staging.how(device.torch_device.type)
                      if case.backend in INLINE_BACKENDS else None)  # unknown of other libraries
            reported = close(operation)  # may take one more step, within the operation's context
        self._progress.mark(WorkerPhase.IDLE)
        n_wrong, wrong = loop.total_wrong(measured.wrong, checked=checked)
        left_behind = changed(before, process_state())
        phases = reported.pop("phases", None) or {"names": [], "ns": []}
        return messages.CaseAnswer(
            begin_ns, end_ns, str(device.torch_device), measured.stop_reason, communicator_ns,
            n_wrong, wrong, dict(zip(phases["names"], phases["ns"], strict=True)),
            {"device_memory": memory, **reported,
             **({} if checked == case.validate else {HAS_NO_CHECK: True})}, left_behind)

    def _profile(self, request: messages.ProfileRequest) -> messages.DoneAnswer:
        """Set a case up again, take profiled samples, and write this rank's trace of them."""
        from hpcbench.profiling.capture import ProfiledSamples, capture  # torch.profiler: 0.1 s

        case, progress = request.case, self._progress
        progress.begin(request.number)
        progress.mark(WorkerPhase.SETUP)
        device = self._device(request.device)
        self._open_group(case, device)
        with self._opened(case, device, validate=False) as operation:
            captured = capture(
                request.tool, operation, device, progress, ProfiledSamples(
                    case.warmup, case.batch, request.samples, device.torch_device.type == "cuda"),
                loop.Surroundings(
                    self._start(case, request.clock), loop.FixedCount(request.samples),
                    self._control(case.backend).barrier, time.perf_counter_ns,
                    faults=before_call(request.faults, _slow_down(operation)),
                    late_s=before_timed_calls(request.faults)))
        close(operation, with_report=False)  # nobody wants its counted step
        write_rank_file(Path(request.path), captured.trace, RankProfile(
            case.case_id, request.attempt, self._member.rank, str(device.torch_device),
            progress.rows().tolist(), captured.anchors))
        progress.mark(WorkerPhase.IDLE)
        return messages.DoneAnswer()

    @contextlib.contextmanager
    def _opened(
        self, case: Case, device: AnyDevice, *, validate: bool,
    ) -> Iterator[AnyOperation]:
        with opened(self._runner(case.kind), case.workload, self._place(case, device),
                    validate=validate) as operation:
            if isinstance(operation, Stepping):
                operation.on_step = self._progress.step
            yield captured(operation, self._control(case.backend)) if case.cuda_graph else operation

    def _place(self, case: Case, device: AnyDevice) -> Place:
        rank = self._member.rank
        ranks = next(ranks for ranks in case.group_ranks if rank in ranks)
        return Place(ranks.index(rank), len(ranks), self._groups[_group_key(case)],
                     device.torch_device, ranks.start, ranks.step, self._member.local_size)

    def _open_group(self, case: Case, device: AnyDevice) -> int:
        """Open this rank's group under test, never the control group even when both are gloo.

        Returns how long it took in ns, NO_COMMUNICATOR if it was open already."""
        member = self._member
        if (key := _group_key(case)) in self._groups:
            return NO_COMMUNICATOR
        self._control(case.backend).barrier()
        began_ns = time.perf_counter_ns()
        self._groups[key] = groups.open_groups(
            case.backend, timedelta(seconds=member.timeout_s),
            case.group_ranks, member.rank, device.torch_device, self._mpi and self._mpi.tested)
        return time.perf_counter_ns() - began_ns

    def _control(self, backend: str) -> Control:
        if backend in INLINE_BACKENDS and self._mpi is not None:
            return groups.MpiControl(self._mpi.control)
        return self._workers_control

    def _surroundings(
        self, request: messages.CaseRequest, operation: AnyOperation,
    ) -> loop.Surroundings:
        """Return how this case starts and stops here, and the faults that it is to have."""
        case, clock, faults = request.case, request.clock, request.faults
        control = self._control(case.backend)
        fold = loop.slowest_rank if case.mode != "isolated" else (
            loop.first_to_last if case.arrival == TOGETHER else loop.last_to_last)(clock)
        return loop.Surroundings(
            start=self._start(case, clock), stopping=self._stopping(request, fold, control),
            finish=control.barrier, now_ns=time.perf_counter_ns,
            faults=before_call(faults, _slow_down(operation)), late_s=before_timed_calls(faults),
            corruptions=after_call(faults, operation.corrupt_output),
            wrong_operations=wrong_operations(faults, lambda: self._stray(case, operation.place)))

    def _stray(self, case: Case, place: Place) -> AnyOperation:
        """Return another collective than is planned, which tests have a rank call."""
        stray = stray_case(case)
        with opened(self._runner(stray.kind), stray.workload, place, validate=False) as operation:
            return operation

    def _start(self, case: Case, clock: ClockModel) -> loop.Start:
        """Return how the samples of a case begin in its mode."""
        control, now_ns = self._control(case.backend), time.perf_counter_ns
        if case.mode != "isolated":
            return loop.after_barrier(control)
        self._slack_ns = self._slack_ns or loop.first_slack_ns(control, now_ns)
        start = loop.AgreedStart(control, clock, now_ns, self._slack_ns)
        if case.arrival != TOGETHER:
            return loop.entering_late(start, self._delay_ns(case), now_ns)
        return start if case.world_size > 1 else loop.of_one_rank(start)

    def _delay_ns(self, case: Case) -> Callable[[], int]:
        """Return a function that gives this rank's delay in ns before the coming sample."""
        ranks = next(ranks for ranks in case.group_ranks if self._member.rank in ranks)
        rank, progress = ranks.index(self._member.rank), self._progress
        return lambda: case.arrival.delay_ns(rank, len(ranks), progress.iteration)

    def _all_check(self, case: Case, operation: Any) -> bool:
        """Return whether the operation is checked. Raises CaseError if on some ranks only."""
        has = getattr(operation, "has_check", None)
        if has is None:
            return True
        control = self._control(case.backend)
        answers = control.maximum(np.array([has, not has], dtype=np.int64))
        if answers.sum() > 1:
            raise CaseError(f"{case.workload.name} has {'a' if has else 'no'} check on this rank, "
                            f"and {'none' if has else 'one'} on another; give all ranks one, or "
                            "none")
        return bool(has)

    def _stopping(
        self, request: messages.CaseRequest, fold: loop.Fold, control: Control,
    ) -> loop.FixedCount | loop.EnoughSamples:
        case = request.case
        if case.is_fixed:
            return loop.FixedCount(case.iterations)
        rule = StopRule(min_n=case.min_iterations, max_n=case.iterations,
                        target=request.precision, budget_s=request.budget_s,
                        least_s=LEAST_PASS_S)
        return loop.EnoughSamples(rule, fold, control, self._progress, time.perf_counter_ns,
                                  decides=self._member.rank == 0)

    def _device(self, name: str) -> AnyDevice:
        if name not in self._devices:
            self._devices[name] = open_device(name, self._member.gpu)
        self._devices[name].give_back()
        return self._devices[name]

    def leave(self) -> None:
        """Destroy the process group together with the other workers."""
        if self._membership is not None:
            groups.host_barrier()
        self.abandon()

    def abandon(self) -> None:
        """Destroy the process group without waiting for the other workers."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._membership = None
        self._workers_control = groups.GlooControl()
        self._store = None
        self._groups.clear()


def _slow_down(operation: AnyOperation) -> Callable[[float], None]:
    return operation.slow_down if isinstance(operation, CanSlowDown) else _undraggable


def _undraggable(seconds: float) -> None:
    raise CaseError("this kind of case has no batch whose samples can take longer")


def _group_key(case: Case) -> tuple[object, ...]:
    """Return the key of a case's group; the canary has its own, so that it warms up no other."""
    return case.backend, case.group_ranks, case.case_id if case.index < 0 else ""


def serve(channel: messages.WorkerChannel, progress: SharedProgress) -> None:
    """Answer requests until one is to leave, or until the supervisor is gone."""
    worker = Worker(progress, supervised=True)
    with contextlib.suppress(EOFError, OSError):
        while not isinstance(request := channel.receive(), messages.LeaveRequest):
            channel.send(worker.answer(request))
        worker.leave()
        channel.send(messages.DoneAnswer())
