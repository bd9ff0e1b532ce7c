"""The runner of memory: trainings, as the runner of trainings opens them, with two steps more.

Those are followed for the parts of a rank's peak. A worker that has a limit is used for one try of
a search. The limit is on memory taken from its beginning on: the earlier memory of Python and torch
is no part of a training."""

from __future__ import annotations

import contextlib
import gc
import resource
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from hpcbench.backends.counting_backend import COUNTING_BACKEND
from hpcbench.backends.devices import out_of_memory
from hpcbench.errors import CaseError
from hpcbench.kinds.memory.plan import PARTS, MemoryWork
from hpcbench.kinds.training.plan.workload import SYNTHETIC, Training
from hpcbench.kinds.training.run.memory import Storages
from hpcbench.kinds.training.run.parity import small_training
from hpcbench.kinds.training.run.runner import TrainingOperation, advising
from hpcbench.kinds.training.run.strategies.base import Batch, Strategy, phase_clock
from hpcbench.measurement.process import KernelFiles, granted_memory
from hpcbench.measurement.runner import Runner
from hpcbench.operations.place import AnyOperation, Place
from hpcbench.plan.workload import Workload

_SCORE = Path("/proc/self/oom_score_adj")
_FIRST_TO_KILL = "1000"
AS_REQUESTED = "as the sweep gives it"
_REFUSALS = ("can't start new thread", "could not create a primitive")
"""Messages of Python and oneDNN beside those that `out_of_memory` knows, in lower case."""


class Limits(ABC):
    """Limits this process; ``limit`` is in bytes with its source, None until it begins."""

    def __init__(self) -> None:
        self.limit: tuple[int, str] | None = None

    def begin(self, requested_bytes: int) -> None:
        limit = self._begin(requested_bytes)
        if limit[0] <= 0:
            raise CaseError(f"largest_batch: {limit[1]} leaves nothing to a training")
        self.limit = limit

    @abstractmethod
    def _begin(self, requested_bytes: int) -> tuple[int, str]:
        """Set the limit and return it."""

    @abstractmethod
    def end(self) -> None:
        """Take it back, so that an answer can be sent."""


class CudaLimits(Limits):
    """Limits torch's caching allocator, by all that it holds, in use or not."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def _begin(self, requested_bytes: int) -> tuple[int, str]:
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        used = torch.cuda.memory_reserved(self._device)
        most = min(requested_bytes, total - used) if requested_bytes else free
        torch.cuda.set_per_process_memory_fraction((used + most) / total, self._device)
        return most, AS_REQUESTED if requested_bytes else "what was free on the GPU"

    def end(self) -> None:
        torch.cuda.set_per_process_memory_fraction(1.0, self._device)


class DataLimits(Limits):
    """Limits the data memory of this process (RLIMIT_DATA), and offers it to the kernel's OOM
    killer first."""

    def __init__(self, local_size: int) -> None:
        super().__init__()
        self._local_size = local_size
        self._before, self._hard = resource.getrlimit(resource.RLIMIT_DATA)

    def _begin(self, requested_bytes: int) -> tuple[int, str]:
        files = KernelFiles()
        used, resident = files.process_bytes("VmData"), files.process_bytes("VmRSS")
        if used is None or resident is None:
            raise CaseError("largest_batch: this system does not report the data of a process")
        limit = (requested_bytes, AS_REQUESTED) if requested_bytes else self._share(used, resident)
        with contextlib.suppress(OSError):  # it may not be allowed
            _SCORE.write_text(_FIRST_TO_KILL)
        if limit[0] > 0:
            resource.setrlimit(resource.RLIMIT_DATA, (used + limit[0], self._hard))
        return limit

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (self._before, self._hard))

    def _share(self, used: int, resident: int) -> tuple[int, str]:
        if self._before != resource.RLIM_INFINITY:
            return self._before - used, "what was left of launch.memory_limit_gb"
        granted, whose = granted_memory(KernelFiles(), psutil.virtual_memory().total)
        return (granted // self._local_size - resident,
                f"{whose}, divided by the ranks of the node, less what a worker has")


@contextlib.contextmanager
def limits_of(device: torch.device, local_size: int) -> Iterator[Limits]:
    """Give the limits of this process on a device, which end when this is left.

    ``local_size`` ranks share what is granted. Raises CaseError where nothing limits a process."""
    if device.type not in ("cpu", "cuda"):
        raise CaseError(f"largest_batch: nothing limits what torch takes on {device.type}")
    limits: Limits = CudaLimits(device) if device.type == "cuda" else DataLimits(local_size)
    try:
        yield limits
    finally:
        limits.end()


def refused_memory(error: Exception) -> bool:
    """Return whether an error within a limit is that memory was refused.

    The same steps ran without a limit on a small model, and a thread's stack counts as data."""
    text = str(error).lower()
    return out_of_memory(error) or any(phrase in text for phrase in _REFUSALS)


_WRAPPED = (torch.Tensor, nn.Parameter)


class LiveStorages(TorchDispatchMode):  # type: ignore[misc]
    """Follows every storage that operations see while it is entered.

    Temporary memory of operations and of communication libraries is not seen."""

    def __init__(self, weights: Iterable[torch.Tensor], states: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._storages = storages = Storages(weights)
        self._weights = set(map(storages.number, storages.parameters))
        self._states = set(map(storages.number, states))
        self.restart()

    def restart(self) -> None:
        self._kept: set[int] = set()  # made by forward and backward
        self._gradients: set[int] = set()
        self._in_update = False
        self._most: tuple[int, list[tuple[int, int]]] = (0, [])

    def begin_update(self) -> None:
        self._gradients, self._in_update = self._storages.gradients(), True

    def at_peak(self) -> dict[str, int]:
        first = self._storages.first
        copied = {first(one) for one in (*self._weights, *self._gradients)}
        of_parts = dict.fromkeys(PARTS, 0)
        for number, size in self._most[1]:
            parts = zip(PARTS, (self._weights, self._gradients, self._states), strict=False)
            is_activation = number in self._kept and first(number) not in copied
            of_parts[next((part for part, numbers in parts if number in numbers),
                          "activations" if is_activation else "temporary")] += size
        return of_parts

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None,
    ) -> Any:
        if any(kind not in _WRAPPED for kind in types):
            return NotImplemented  # a subclass does it by operations on its own tensors
        storages = self._storages
        before = list(map(storages.number, _tensors((args, kwargs))))
        n_known = len(storages.same)
        result = func(*args, **(kwargs or {}))
        after = list(map(storages.number, _tensors(result)))
        if not self._in_update:
            self._kept |= set(range(n_known, len(storages.same)))
        if before and storages.copies_a_parameter(func, result):
            storages.join([*before, *after])
        now = [(number, storage.nbytes()) for number, reference in tuple(storages.alive.values())
               if (storage := reference()) is not None]
        total = sum(size for _, size in now)
        if total > self._most[0]:
            self._most = total, now
        return result


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in tree_iter(values)
            if isinstance(value, torch.Tensor) and value.device.type != "meta")


FOLLOWED = "storages of one step"
ALLOCATED = "cuda allocated"


class MemoryOperation(TrainingOperation):
    """Steps of a training. Only its losses are checked: parity would take memory."""

    def __init__(self, work: MemoryWork, place: Place, limits: Limits | None = None) -> None:
        """Build model and strategy; ``limits`` of a try stand in place of the node's share."""
        self._limits = limits
        if place.device.type == "cuda":
            torch.cuda.empty_cache()  # what earlier cases left is no overhead of this one
        super().__init__(work.training, place, validate=False)
        self.name = work.name

    def answer(self) -> dict[str, Any]:
        """Return the values beside the rows; ``memory`` and ``held`` are in bytes. All ranks take
        two steps."""
        answer = super().answer()
        if self.is_dry_run:
            return answer
        device, outer = self.place.device, answer["memory"]
        used = _used_bytes(device, outer)
        parts = self.one_more(followed)
        if device.type == "cuda":
            parts["temporary"] += max(int(outer["peak"]) - sum(parts.values()), 0)
        peak = sum(parts.values())
        of = ALLOCATED if device.type == "cuda" else FOLLOWED
        answer["held"] = {**parts, "overhead": None if used is None else used - peak, "of": of}
        outer |= {"peak": peak, "peak_of": of}
        size, of = (self._limits and self._limits.limit) or _capacity(
            device, self.place.local_size)
        answer["capacity"] = {"bytes": size, "of": of}
        return answer


def followed(spec: Training, strategy: Strategy, batch: Batch) -> dict[str, int]:
    """Take two steps on a batch, and return the peak of the second by PARTS. All ranks call it.

    The first shows what stays from step to step, such as buckets, before it is used again."""
    live = LiveStorages(strategy.weights(), strategy.states())
    phases = phase_clock(strategy.place.device)
    phases.begin()
    for _ in range(2):
        live.restart()
        with live:
            strategy.forward_backward(batch, phases)
            live.begin_update()
            strategy.update(phases)
            strategy.rebalance(phases)
    return live.at_peak()


def _used_bytes(device: torch.device, recorded: dict[str, Any]) -> int | None:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return int(recorded["peak"]) if recorded.get("peak_of") == "process growth" else None


def _capacity(device: torch.device, local_size: int) -> tuple[int, str]:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1], "the GPU"
    if device.type == "mps":
        return torch.mps.recommended_max_memory(), "what macOS recommends for the GPU"
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY:
        return limit, "launch.memory_limit_gb"
    granted, whose = granted_memory(KernelFiles(), psutil.virtual_memory().total)
    return granted // local_size, f"{whose}, divided by the ranks of the node"


class MemoryRunner(Runner):
    """Opens trainings whose memory is measured; nothing is proved before: that takes memory, too.
    """

    @contextlib.contextmanager
    def open(self, work: Workload, place: Place, *, validate: bool) -> Iterator[AnyOperation]:
        assert isinstance(work, MemoryWork)
        if work.search is None:
            with advising(work.training, place):
                yield MemoryOperation(work, place)
        elif dist.get_backend(place.group) == COUNTING_BACKEND:
            yield MemoryOperation(work, place)
        else:
            with _limited(work, place) as limits:
                yield MemoryOperation(work, place, limits)


@contextlib.contextmanager
def _limited(work: MemoryWork, place: Place) -> Iterator[Limits]:
    """Limit a try of a search, after a warm-up. Raises MemoryError for refused memory."""
    assert work.search is not None
    with limits_of(place.device, place.local_size) as limits:
        try:
            warm_up_process(work.training, work.search.unit, place)
            limits.begin(work.search.limit_bytes)
            yield limits
        except Exception as error:
            if not (limits.limit and refused_memory(error)):
                raise
            raise MemoryError(str(error).partition("\n")[0]) from error


def warm_up_process(training: Training, unit: int, place: Place) -> None:
    """Take the memory that is no part of a training, by steps on a small model. All ranks call
    it."""
    small = small_training(replace(training, batch_size=unit, data=SYNTHETIC))
    steps = TrainingOperation(small, place, validate=False)
    for _ in range(2):
        steps.prepare()
        steps.run()
    steps.one_more(followed)
    steps.close()
    del steps
    gc.collect()
