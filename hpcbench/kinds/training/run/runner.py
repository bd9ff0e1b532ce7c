"""The runner of trainings, and the communication of a step without the step.

That is its calls one after another, with as many bytes. Steps of the same strategy on a group that
communicates nothing show what a rank calls.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import psutil
import torch
import torch.distributed as dist

from hpcbench.backends.counting_backend import CallLog, RecordedCall, TensorSpec, Wait
from hpcbench.backends.devices import out_of_memory
from hpcbench.backends.groups import open_lines
from hpcbench.kinds.kind import Runner
from hpcbench.kinds.training.plan.planner import advice
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.memory import Peak
from hpcbench.kinds.training.run.operation import TrainingOperation, silent
from hpcbench.measure.process import KernelFiles
from hpcbench.operations.operation import AnyOperation
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload

Program = Sequence[RecordedCall | Wait]
Works = dict[int, Sequence[Any]]
"""Entry of a message in the program -> what to wait for."""
_MESSAGES = {"send": dist.isend, "recv": dist.irecv}
_DRY_STEPS = 1
"""Before the one whose calls are taken: in the first torch's pipelines agree on shapes."""


class ReplayOperation:
    """A call is the collectives and messages of one step, on real groups.

    Collectives are waited for one by one. Messages are sent, received and waited for in the order
    of the step's own program, so ranks wait for each other there only.
    """

    def __init__(self, spec: Training, place: Place) -> None:
        self.name = spec.name
        self.place = place
        ledger = CallLog(counts=False)
        program = calls_of_step(spec, place, ledger)
        self._opened = [open_lines(place.group, lines, place.number) for lines in ledger.opened]
        groups = dict(zip(map(str, ledger.opened), self._opened, strict=True))
        self._steps = list(_steps(program, {str(None): place.group, **groups}))

    def prepare(self) -> None:
        """Do nothing: all buffers hold zeros, and stay so."""

    def run(self) -> None:
        works: Works = {}
        for step in self._steps:
            step(works)
        for left in works.values():
            _wait(left)

    def spoil(self) -> None:
        """Do nothing: there is no result."""

    def check(self) -> None:
        """Return None: there is no result that could be wrong."""

    def answer(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        for group in self._opened:
            dist.destroy_process_group(group)


def calls_of_step(spec: Training, place: Place, ledger: CallLog) -> Program:
    """Return this rank's calls of a step; all ranks call it. ``ledger`` keeps the groups' lines."""
    dry = silent(place, ledger)
    work = replace(spec, communication="on", compile=False)  # compiled it calls the same
    operation = TrainingOperation(work, dry, validate=False)
    operation.prepare()
    for _ in range(_DRY_STEPS):
        operation.run()
    ledger.keep()
    operation.run()
    program, ledger.program = ledger.program or [], None
    operation.close()
    dist.destroy_process_group(dry.group)
    return program


def _steps(program: Program, groups: dict[str, Any]) -> Iterator[Callable[[Works], None]]:
    """Yield what carries out each part of a program, on buffers that equal calls share."""
    buffers: dict[object, torch.Tensor] = {}
    for key, entries in groupby(enumerate(program), lambda entry: _kind(entry[1])):
        if key == "wait":
            yield from (_waiting(entry.call) for _, entry in entries if isinstance(entry, Wait))
            continue
        calls = [(number, call) for number, call in entries if isinstance(call, RecordedCall)]
        group = groups[str(calls[0][1].lines)]
        made = [(number, call.method, _made(call.arguments, call.method, buffers))
                for number, call in calls]
        if calls[0][1].method in _MESSAGES:
            yield _exchanging(group, made)
        else:
            yield from (_calling(group, method, arguments) for _, method, arguments in made)


def _kind(entry: RecordedCall | Wait) -> str:
    """Return what entries have in common that are carried out together."""
    if isinstance(entry, Wait):
        return "wait"
    return f"{'message' if entry.method in _MESSAGES else 'collective'} {entry.lines}"


def _made(value: Any, key: object, buffers: dict[object, torch.Tensor]) -> Any:
    """Return a value with a tensor of zeros for each `Blank` in it."""
    if isinstance(value, TensorSpec):
        place = key, value
        if place not in buffers:
            buffers[place] = torch.zeros(value.shape, dtype=value.dtype, device=value.device)
        return buffers[place]
    if isinstance(value, tuple):
        return [_made(item, (key, at), buffers) for at, item in enumerate(value)]
    return value


def _calling(group: Any, method: str, arguments: Sequence[Any]) -> Callable[[Works], None]:
    return lambda _: getattr(group, method)(*arguments).wait()


def _exchanging(
    group: Any, messages: Sequence[tuple[int, str, Sequence[Any]]],
) -> Callable[[Works], None]:
    """Return what begins messages that nothing is waited for between."""
    operations = [dist.P2POp(_MESSAGES[method], tensor, group=group, tag=tag, group_peer=peer)
                  for _, method, ((tensor,), peer, tag) in messages]

    def exchange(works: Works) -> None:
        begun = dist.batch_isend_irecv(operations)
        each = len(begun) == len(messages)  # else one for all, as NCCL has it
        for at, (number, *_) in enumerate(messages):
            works[number] = begun[at:at + 1] if each else begun

    return exchange


def _waiting(call: int) -> Callable[[Works], None]:
    return lambda works: _wait(works.pop(call, ()))


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        work.wait()


class TrainingRunner(Runner):
    """Opens trainings."""

    def open(self, work: Workload, place: Place, *, validate: bool) -> AnyOperation:
        assert isinstance(work, Training)
        if work.communication == "only":
            return ReplayOperation(work, place)
        return TrainingOperation(work, place, validate=validate)

    @contextlib.contextmanager
    def around(self, work: Workload, device: torch.device, local_size: int) -> Iterator[None]:
        """Say of a training that runs out of memory what of it would have fitted."""
        assert isinstance(work, Training)
        peak, (available, of) = Peak(device), _available(device, local_size)
        try:
            yield
        except Exception as error:
            if not out_of_memory(error):
                raise
            most = peak.read().get("peak")
            used = f"{int(most) / 1e9:.3g}" if most is not None else "unknown"
            raise OutOfMemory(f"peak {used} GB of {available / 1e9:.3g} GB ({of}); "
                              f"{advice(work, available)}") from error


class OutOfMemory(MemoryError):
    """A training did not fit; the message proposes settings that would."""


def _available(device: torch.device, local_size: int) -> tuple[int, str]:
    """Return the bytes that a rank can have, as `Peak` counts them, and what they are of.

    On CUDA that is with what it holds already (`backends.devices.free_bytes` is without): the peak
    there is of all that torch allocates. ``local_size`` ranks share a node's memory, where nothing
    else limits them.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device), "the GPU's"
    if device.type == "mps":
        left = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return max(left, 0), "what macOS recommends for the GPU"
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    data = KernelFiles().process_bytes("VmData")
    if limit != resource.RLIM_INFINITY and data is not None:
        return max(limit - data, 0), "left of launch.memory_limit_gb"
    return psutil.virtual_memory().available // local_size, "the node's, for each of its ranks"
