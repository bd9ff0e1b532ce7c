"""`hpcbench.measure`: the timed loop of `hpcbench run` inside a program of the user's own."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hpcbench.api.measurement import Measurement
from hpcbench.api.ranks import CommonClock, Ranks, SharedFailures, common_clock, open_ranks
from hpcbench.api.saved import (
    append,
    identified,
    own_noise,
    program_record,
    saved_path,
    with_checks,
)
from hpcbench.config.axes import Checks
from hpcbench.errors import MeasureError, how_to_install
from hpcbench.measurement import loop
from hpcbench.measurement.control import Control, Integers, SharedProgress
from hpcbench.operations.functions import MOST_OF_A_CALL, checked, is_deferred, is_number, quoted
from hpcbench.plan.case import DEFAULT_MODE, PROGRAM_KIND, Case
from hpcbench.plan.workload import UnknownWorkload
from hpcbench.reduce import fold
from hpcbench.reduce.stack import PassKey, counts, is_timed, stack_samples
from hpcbench.reduce.timing import Planned, measured
from hpcbench.statistics.order import median, medians
from hpcbench.statistics.stopping import StopRule
from hpcbench.texts import error_line
from hpcbench.trace.schema import NO_DEVICE_TIME, Record, Samples
from hpcbench.units import to_tflop_per_s

FEWEST, MOST = 6, 10_000
"""Samples within ``seconds``: fewer hold no interval of 95 %, not even an unreliable one."""
MOST_OF_ALL_RANKS = 2_000_000
"""Each rank gets the samples of all."""
Call = Callable[[], object]
T = TypeVar("T")


def measure(
    fn: Call, *, setup: Call | None = None, check: Callable[[], Any] | None = None,
    bytes: float | None = None, flops: float | None = None, group: Any = None,
    device: Any = None, seconds: float | None = None, iterations: int | None = None,
    warmup: int = 5, name: str | None = None, save: str | os.PathLike[str] | None = None,
) -> Measurement:
    """Time ``fn()`` on all ranks of a group; collective, and the result is the same on all.

    Ranks line up before each sample, which is one call. How many there are is decided once, for
    all ranks.

    Args:
        fn: what is timed, without arguments. On a GPU until the work it issued is complete.
        setup: called before each call, outside of the time.
        check: called after some calls, outside of the time: returns None or True if the result is
            right, else False, the number of wrong elements, or a text.
        bytes: that a call moves, for ``bandwidth``.
        flops: operations of a call, for ``tflops``.
        group: an mpi4py communicator or a torch.distributed process group. None: torch's default
            group if there is one, else this process alone.
        device: ``cpu``, ``cuda``, ``cuda:1``, ``mps`` or a torch.device. None: the current GPU if
            this process uses CUDA, else the host.
        seconds: how long to measure, 1.0 unless given; 6 samples at least, 10,000 at most.
        iterations: how many samples instead, exactly.
        warmup: calls before the first sample, not in the result.
        name: shown in the result; the function's own unless given.
        save: results file, or a folder for one, that gets this measurement, too: a case, or one
            more launch of a case that it has. Ranks of one node only.

    Raises:
        TypeError, ValueError: for an argument, or one that differs between ranks.
        FileError: ``save`` cannot take it.
        MeasureError: on all ranks, if ``fn``, ``setup`` or ``check`` raises on one; names the
            rank. With one rank alone the exception itself."""
    request = MeasureRequest(fn, setup, check, bytes, flops, seconds, _plain(iterations),
                             _plain(warmup),
                             _name_of(fn) if name is None else name, save)
    ranks = open_ranks(group)
    opened, saved = _agreed(ranks, request, device)
    with opened as timed:
        result = _measured(request, ranks, timed, saved)
    ranks.close()
    return result


@dataclass(frozen=True, slots=True)
class MeasureRequest:
    """The arguments of a measurement."""

    fn: Call
    setup: Call | None
    check: Callable[[], Any] | None
    bytes: float | None
    flops: float | None
    seconds: float | None
    iterations: int | None
    warmup: int
    name: str
    save: Any

    def check_values(self) -> None:
        """Raise TypeError or ValueError for the first invalid argument."""
        if not callable(self.fn):
            raise TypeError(f"measure: fn is {quoted(self.fn)}, not callable; give a function "
                            "without arguments, such as lambda: step(batch)")
        for title, call in (("fn", self.fn), ("setup", self.setup), ("check", self.check)):
            if call is not None and not callable(call):
                raise TypeError(f"measure: {title} is {quoted(call)}, not callable")
            if is_deferred(call):
                raise TypeError(f"measure: {title} is async or a generator: calling it runs "
                                "nothing; give a function that does the work")
        if self.seconds is not None and self.iterations is not None:
            raise ValueError("measure: seconds and iterations are both given; give one of them")
        if not isinstance(self.name, str):
            raise TypeError(f"measure: name is {quoted(self.name)}; give a text")
        if self.save is not None and "<lambda>" in self.name:
            raise ValueError(f"measure: save needs a name: {self.name} may be several functions")
        for title, least in (("seconds", 0.0), ("bytes", 0.0), ("flops", 0.0)):
            _check_number(title, getattr(self, title), least, positive=title == "seconds")
        for title, fewest in (("iterations", 1), ("warmup", 0)):
            _check_count(title, getattr(self, title), fewest)

    @property
    def alike(self) -> Mapping[str, Any]:
        """Return the values that must be the same on all ranks, by name."""
        return {"seconds": self.seconds, "iterations": self.iterations, "warmup": self.warmup,
                "check": self.check is not None, "save": self.save is not None}

    def counts(self, ranks: int) -> tuple[int, int]:
        """Return the least and the greatest number of samples."""
        if self.iterations is not None:
            return self.iterations, self.iterations
        return FEWEST, max(FEWEST, min(MOST, MOST_OF_ALL_RANKS // ranks))


def _check_number(title: str, value: Any, least: float, *, positive: bool) -> None:
    if value is None:
        return
    if not is_number(value):
        raise TypeError(f"measure: {title} is {quoted(value)}; give a number")
    if not least <= value <= MOST_OF_A_CALL or (positive and value == least):
        raise ValueError(f"measure: {title} is {quoted(value)}; give "
                         f"{'more than 0' if positive else '0 or more'}, and at most 10**24")


def _check_count(title: str, value: Any, fewest: int) -> None:
    if value is None and title == "iterations":
        return
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"measure: {title} is {quoted(value)}; give a whole number")
    if value < fewest:
        raise ValueError(f"measure: {title} is {quoted(value)}; give {fewest} or more")


def _plain(value: Any) -> Any:
    """Return a whole number of numpy as one of Python, which has a place in the results file."""
    return int(value) if isinstance(value, np.integer) else value


def _name_of(fn: Any) -> str:
    while isinstance(fn, partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", type(fn).__name__)).replace("<locals>.", "")


def _agreed(ranks: Ranks, request: MeasureRequest, device: Any) -> tuple[Opened, Path | None]:
    """Return the device's context manager, and on rank 0 the file to save to. Raises on all ranks
    where arguments are bad or differ."""
    def prepared() -> tuple[Opened, Path | None]:
        request.check_values()
        saves = request.save is not None and ranks.rank == 0
        return open_device(device), saved_path(request.save) if saves else None

    ready = _on_all(ranks, prepared)
    gathered = ranks.gather(dict(request.alike))
    for key, first in gathered[0].items():
        for rank, values in enumerate(gathered):
            if values[key] != first:
                raise ValueError(f"measure: {key} is {first} on rank 0, {values[key]} on rank "
                                 f"{rank}; give all ranks of the group the same")
    return ready


def _on_all(ranks: Ranks, work: Callable[[], T]) -> T:
    """Return the result of this rank's work. Where it raises on one rank, all raise."""
    done: list[T] = []
    problem: Exception | None = None
    try:
        done.append(work())
    except Exception as error:  # noqa: BLE001 (no other rank may wait for this one)
        problem = error
    problems = ranks.gather(problem and (str(problem) or type(problem).__name__))
    if problem is not None:
        raise problem
    for rank, text in enumerate(problems):
        if text:
            raise MeasureError(rank, text)
    return done[0]


class Host:
    """The host: a call is complete when it returns. As `backends.devices.CpuDevice`, without
    torch."""

    def prepared(self, run: Call, now_ns: Callable[[], int]) -> Call:
        return run

    took = repeat((NO_DEVICE_TIME, NO_DEVICE_TIME)).__next__
    synchronize = repeat(None).__next__


Opened = contextlib.AbstractContextManager[loop.Device]
_DEVICE = re.compile(r"(cpu|mps|cuda)(?::(\d+))?")


def open_device(device: Any) -> Opened:
    """Return the context manager that gives the device, the current one meanwhile. Raises
    ValueError."""
    if device is None:
        torch = sys.modules.get("torch")
        in_use = torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized()
        device = "cuda" if in_use else "cpu"
    if (match := _DEVICE.fullmatch(str(device))) is None:
        raise ValueError(f"measure: device is {quoted(device)}; give cpu, cuda, cuda:1 or mps")
    return contextlib.nullcontext(Host()) if match[1] == "cpu" else _gpu(match[1], match[2])


def _gpu(name: str, index: str | None) -> Opened:
    try:
        import torch

        from hpcbench.backends.devices import CudaDevice, MpsDevice
    except ImportError as error:
        raise ValueError(f"measure: device {name} needs torch, which is not installed: "
                         f"{how_to_install('run')}") from error
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise ValueError("measure: device mps: torch finds no GPU of Apple's")
        return contextlib.nullcontext(MpsDevice())
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = int(index) if index else torch.cuda.current_device() if gpus else 0
    if number >= gpus:
        raise ValueError(f"measure: device cuda:{number}: torch finds {gpus} GPUs in this process")

    @contextlib.contextmanager
    def current() -> Iterator[loop.Device]:
        with torch.cuda.device(number):
            yield CudaDevice(number)
    return current()


@dataclass(slots=True)
class UserCalls:
    """The user's functions as the timed loop calls them, without code of ours between."""

    run: Call
    prepare: Callable[[], None]
    checker: Callable[[], Any] | None
    name: str

    def check(self) -> object | None:
        """Return the mismatch of the last result, or None."""
        return checked(self.checker) if self.checker else None


def _measured(
    request: MeasureRequest, ranks: Ranks, device: loop.Device, saved: Path | None,
) -> Measurement:
    clock, control = common_clock(ranks), SharedFailures(ranks)
    if request.save is not None and not clock.shared:
        raise ValueError("measure: save takes ranks of one node, which share a clock; leave it "
                         "away here")
    name, device_name = ranks.gather((request.name, _name_of_device(device)))[0]
    least, most = request.counts(ranks.size)
    noise = [] if request.save is None else ranks.gather(own_noise(
        ranks.rank, ranks.size, 1.0 if request.seconds is None else request.seconds))
    progress = SharedProgress.create(most + request.warmup)
    try:
        with _shared_failure(control, ranks):
            around = loop.Surroundings(
                _start(control, clock),
                _stopping(request, most, control, progress, decides=ranks.rank == 0),
                control.barrier, time.perf_counter_ns)
            looped = loop.measure(
                _called(request, name), device, progress,
                loop.SampleSchedule(request.warmup, 1, request.check is not None, name), around)
        gathered = ranks.gather((progress.rows(), looped.wrong, clock.bound_ns))
    finally:
        progress.close()
    case = _case(request, ranks, (name, device_name), (least, most))
    records = _records(case, gathered, looped.stop_reason)
    if request.save is not None:
        _on_all(ranks, lambda: None if saved is None else append(saved, case, records, noise))
    bound_ns = None if clock.model is None else float(sum(sorted(
        bound for *_, bound in gathered)[-2:]))
    wrong = tuple(f"rank {rank}: {mismatch.words}" for rank, (_, found, _) in enumerate(gathered)
                  for mismatch in found if isinstance(mismatch, loop.Wrong))
    return _result(request, case, records, bound_ns, wrong)


def _name_of_device(device: loop.Device) -> str:
    return str(getattr(device, "torch_device", "cpu")).partition(":")[0]


def _called(request: MeasureRequest, name: str) -> UserCalls:
    setup: Any = request.setup or repeat(None).__next__
    return UserCalls(request.fn, setup, request.check, name)


def _start(control: Control, clock: CommonClock) -> loop.Start:
    """Return how samples begin: at an agreed time, or after a barrier without a common clock."""
    if clock.model is None:
        return loop.after_barrier(control)
    now_ns = time.perf_counter_ns
    return loop.AgreedStart(control, clock.model, now_ns, loop.first_slack_ns(control, now_ns))


def _stopping(
    request: MeasureRequest, most: int, control: Control, progress: SharedProgress, *,
    decides: bool,
) -> loop.Stopping:
    """Return the rule that ends the measurement: rank 0 ``decides`` for all."""
    if request.iterations is not None:
        return loop.FixedCount(request.iterations)
    seconds = 1.0 if request.seconds is None else float(request.seconds)
    rule = StopRule(FEWEST, most, target=0.0, budget_s=seconds, least_s=seconds)
    return loop.EnoughSamples(rule, _own_times, control, progress, time.perf_counter_ns,
                              decides=decides)


def _own_times(rows: Integers, control: Control) -> Integers:
    """Return this rank's own times: the end does not depend on them."""
    return np.asarray(rows[:, 1] - rows[:, 0], dtype=np.int64)


@contextlib.contextmanager
def _shared_failure(control: SharedFailures, ranks: Ranks) -> Iterator[None]:
    """Have an exception raised on all ranks; Ctrl-C is every rank's own."""
    try:
        yield
    except (MeasureError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if ranks.size == 1:
            raise
        raise control.fail(_one_line(error), by_peer=_by_peer(error)) from error


def _one_line(error: BaseException) -> str:
    """Return an exception's type, first line and place in the user's program."""
    return error_line(error, os.environ, outside=Path(__file__).parents[1])


def _by_peer(error: BaseException) -> bool:
    """Return whether the end of another rank can have caused it."""
    if "torch" not in sys.modules or not isinstance(error, Exception):
        return False
    from hpcbench.backends.devices import classify

    return classify(error) == "communication"


_ONLY = PassKey(0, 0)


def _case(
    request: MeasureRequest, ranks: Ranks, names: tuple[str, str], limits: tuple[int, int],
) -> Case:
    """Return the measurement as the case of a plan, for the statistics. ``names`` are those of the
    function and the device."""
    least, most = limits
    return identified(Case(
        case_id="", index=0, block="functions", kind=PROGRAM_KIND, backend=ranks.library,
        device=names[1], world_size=ranks.size, env=(), mode=DEFAULT_MODE, warmup=request.warmup,
        iterations=most, min_iterations=least, check=Checks(request.check is not None),
        timeout_s=0.0, wakeup_s=0.0, skip=None, needs=(), estimate_s=0.0, memory_bytes=0,
        workload=UnknownWorkload({"name": names[0], **{
            name: int(value) if value == int(value) else value for name, value in (
                ("bytes", request.bytes), ("flops", request.flops)) if value is not None}},
            PROGRAM_KIND)))


def _records(
    case: Case, gathered: Sequence[tuple[Samples, list[object], float]], stop_reason: str,
) -> dict[int, Record]:
    """Return the records of all ranks, which agree on whether the result is right."""
    return with_checks(
        {rank: program_record(case, rows, stop_reason)
         for rank, (rows, _, _) in enumerate(gathered)},
        [loop.total_wrong(wrong, checked=case.validate) for _, wrong, _ in gathered])


def _result(
    request: MeasureRequest, case: Case, records: Mapping[int, Record], bound_ns: float | None,
    wrong: tuple[str, ...],
) -> Measurement:
    samples = stack_samples({_ONLY: records})
    assert samples is not None  # one count for all ranks
    waits, edges = fold.extreme_durations(samples), None
    if bound_ns is not None:
        edges = fold.edges(fold.GlobalStamps(samples.start_ns, samples.end_ns, bound_ns),
                           timed=is_timed(samples))
    outcome = measured(case, samples, waits, {_ONLY: records}, edges,
                       Planned([_ONLY], repeats=False))
    statistics, counted = outcome.statistics, counts(outcome.use)
    of_all = edges is not None and outcome.timing.fold == "global"
    times_ns = fold.global_ns(edges) if edges is not None and of_all else waits.longest_ns
    each_s = fold.sample_durations_ns(samples)[:, counted] / 1e9
    skew = None if edges is None else median(
        (edges.last_end_ns.max(axis=0) - edges.first_end_ns.min(axis=0))[counted]) / 1e9
    return Measurement(
        name=case.workload.name, median=statistics.median_s,
        interval=statistics.reliable_interval,
        times=times_ns[counted] / 1e9, samples=each_s, per_rank=tuple(medians(each_s).tolist()),
        skew=skew, bandwidth=None if request.bytes is None else request.bytes / statistics.median_s,
        tflops=(None if request.flops is None
                else to_tflop_per_s(request.flops / statistics.median_s)),
        checked=request.check is not None, wrong=wrong, flags=outcome.timing.quality)
