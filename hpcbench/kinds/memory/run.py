"""The runner of memory: trainings, as the runner of trainings opens them, with two steps more.

Those are followed: what a rank holds when it holds most, by what it is. A worker that has a limit
is used for one try of a search. The limit is of what is taken from its beginning on: what Python
and torch hold before is no part of a training.
"""

from __future__ import annotations

import contextlib
import gc
import resource
import weakref
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

from hpcbench.backends.counting_backend import REHEARSAL
from hpcbench.backends.devices import out_of_memory
from hpcbench.errors import CaseError
from hpcbench.kinds.memory.plan import PARTS, MemoryWork
from hpcbench.kinds.training.plan.workload import SYNTHETIC, Training
from hpcbench.kinds.training.run.memory import SameNumbers, copies_a_parameter, local, shapes_of
from hpcbench.kinds.training.run.parity import small_training
from hpcbench.kinds.training.run.runner import TrainingOperation, advising
from hpcbench.kinds.training.run.strategies.base import Batch, Strategy, phase_clock
from hpcbench.measure.process import KernelFiles, granted_memory
from hpcbench.measure.runner import Runner
from hpcbench.operations.place import AnyOperation, Place
from hpcbench.plan.workload import Workload

_SCORE = Path("/proc/self/oom_score_adj")
_FIRST_TO_KILL = "1000"
GIVEN = "as the sweep gives it"
_REFUSALS = ("can't start new thread", "could not create a primitive")
"""What Python and oneDNN say then beside what `out_of_memory` knows, in lower case."""


class Limits(ABC):
    """What limits this process; ``limit`` is in bytes with what it is of, None until it begins."""

    def __init__(self) -> None:
        self.limit: tuple[int, str] | None = None

    def begin(self, asked_bytes: int) -> None:
        """Limit what is taken from now on, by 0 to what there is. Raises CaseError if nothing."""
        limit = self._begin(asked_bytes)
        if limit[0] <= 0:
            raise CaseError(f"largest_batch: {limit[1]} leaves nothing to a training")
        self.limit = limit

    @abstractmethod
    def _begin(self, asked_bytes: int) -> tuple[int, str]:
        """Set the limit and return it."""

    @abstractmethod
    def end(self) -> None:
        """Take it back, so that an answer can be sent."""


class CudaLimits(Limits):
    """Limits torch's caching allocator, by all that it holds, in use or not."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def _begin(self, asked_bytes: int) -> tuple[int, str]:
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        held = torch.cuda.memory_reserved(self._device)
        most = min(asked_bytes, total - held) if asked_bytes else free
        torch.cuda.set_per_process_memory_fraction((held + most) / total, self._device)
        return most, GIVEN if asked_bytes else "what was free on the GPU"

    def end(self) -> None:
        torch.cuda.set_per_process_memory_fraction(1.0, self._device)


class DataLimits(Limits):
    """Limits the data memory of this process (RLIMIT_DATA), and offers it to the kernel's killer.

    If memory runs out although all keep their limits, the kernel then ends this worker, not its
    supervisor, and nothing else that runs here.
    """

    def __init__(self, local_size: int) -> None:
        super().__init__()
        self._local_size = local_size
        self._before, self._hard = resource.getrlimit(resource.RLIMIT_DATA)

    def _begin(self, asked_bytes: int) -> tuple[int, str]:
        files = KernelFiles()
        held, resident = files.process_bytes("VmData"), files.process_bytes("VmRSS")
        if held is None or resident is None:
            raise CaseError("largest_batch: this system does not tell how much data a process has")
        limit = (asked_bytes, GIVEN) if asked_bytes else self._share(held, resident)
        with contextlib.suppress(OSError):  # nobody may be allowed to
            _SCORE.write_text(_FIRST_TO_KILL)
        if limit[0] > 0:
            resource.setrlimit(resource.RLIMIT_DATA, (held + limit[0], self._hard))
        return limit

    def end(self) -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (self._before, self._hard))

    def _share(self, held: int, resident: int) -> tuple[int, str]:
        """Return what is left of the limit on all workers, or of the rank's share of the node."""
        if self._before != resource.RLIM_INFINITY:
            return self._before - held, "what was left of launch.memory_limit_gb"
        granted, whose = granted_memory(KernelFiles(), psutil.virtual_memory().total)
        return (granted // self._local_size - resident,
                f"{whose}, divided by the ranks of the node, less what a worker has")


@contextlib.contextmanager
def limits_of(device: torch.device, local_size: int) -> Iterator[Limits]:
    """Give what limits this process on a device while this is entered, once it begins.

    ``local_size`` ranks share what is granted. Raises CaseError where nothing limits a process.
    """
    if device.type not in ("cpu", "cuda"):
        raise CaseError(f"largest_batch: nothing limits what torch takes on {device.type}")
    limits: Limits = CudaLimits(device) if device.type == "cuda" else DataLimits(local_size)
    try:
        yield limits
    finally:
        limits.end()


def refused_memory(error: Exception) -> bool:
    """Return whether an error within a limit is that memory was refused.

    The same steps were taken without a limit before, on a small model: no library lacks anything
    else. The stack of a thread counts as data, so it can be what is refused.
    """
    text = str(error).lower()
    return out_of_memory(error) or any(words in text for words in _REFUSALS)


_WRAPPED = (torch.Tensor, nn.Parameter)


class LiveStorages(TorchDispatchMode):  # type: ignore[misc]
    """Follows every storage that operations see while it is entered.

    Memory that an operation takes for itself and gives back is not seen, nor is what libraries
    hold that communicate. ``weights`` are all of the model, parameters among them, ``states`` the
    optimizer's.
    """

    def __init__(self, weights: Iterable[torch.Tensor], states: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._parameters = list(weights)
        self._shapes = shapes_of(self._parameters)
        self._alive: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._same = SameNumbers()
        self._kept: set[int] = set()  # made by forward and backward
        self._in_update = False
        self._most: tuple[int, list[tuple[int, int]]] = (0, [])
        self._weights = {self._number(local(one)) for one in self._parameters}
        self._states = {self._number(local(one)) for one in states}
        self._gradients: set[int] = set()

    def restart(self) -> None:
        """Begin a step: what is alive stays known, the moment with most and its parts do not."""
        self._kept, self._gradients = set(), set()
        self._in_update = False
        self._most = (0, [])

    def gradients_are_there(self) -> None:
        """Note which storages are gradients; what comes now is the optimizer's."""
        self._gradients = {self._number(local(one.grad)) for one in self._parameters
                           if one.grad is not None}
        self._in_update = True

    def at_peak(self) -> dict[str, int]:
        """Return the bytes of each of PARTS at the moment with most of all together."""
        copied = {self._same.first(one) for one in (*self._weights, *self._gradients)}
        found = dict.fromkeys(PARTS, 0)
        for number, size in self._most[1]:
            found[self._part(number, copied)] += size
        return found

    def _part(self, number: int, copied: set[int]) -> str:
        for part, numbers in zip(PARTS, (self._weights, self._gradients, self._states),
                                 strict=False):
            if number in numbers:
                return part
        is_activation = number in self._kept and self._same.first(number) not in copied
        return "activations" if is_activation else "temporary"

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None,
    ) -> Any:
        if any(kind not in _WRAPPED for kind in types):
            return NotImplemented  # a subclass does it by operations on its own tensors
        before = [self._number(one) for one in _tensors((args, kwargs))]
        n_known = len(self._same)
        result = func(*args, **(kwargs or {}))
        after = [self._number(one) for one in _tensors(result)]
        if not self._in_update:
            self._kept |= set(range(n_known, len(self._same)))
        if before and copies_a_parameter(func, result, self._shapes):
            self._same.join([*before, *after])
        self._look()
        return result

    def _look(self) -> None:
        now = [(number, storage.nbytes()) for number, reference in tuple(self._alive.values())
               if (storage := reference()) is not None]
        total = sum(size for _, size in now)
        if total > self._most[0]:
            self._most = total, now

    def _number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._alive:
            # a storage's object in Python lives as long as its memory
            self._alive[key] = (self._same.add(), weakref.ref(
                storage, lambda _: self._alive.pop(key, None)))
        return self._alive[key][0]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in tree_iter(values)
            if isinstance(value, torch.Tensor) and value.device.type != "meta")


FOLLOWED = "storages of one step"
ALLOCATED = "cuda allocated"


class MemoryOperation(TrainingOperation):
    """Steps of a training. Its losses are checked; what proves a strategy would take memory."""

    def __init__(self, work: MemoryWork, place: Place, limits: Limits | None = None) -> None:
        """Build model and strategy; ``limits`` of a try stand in place of the node's share."""
        self._limits = limits
        if place.device.type == "cuda":
            torch.cuda.empty_cache()  # what earlier cases left is no overhead of this one
        super().__init__(work.training, place, validate=False)
        self.name = work.name

    def answer(self) -> dict[str, Any]:
        """Return the values beside the rows; ``memory`` and ``held`` are in bytes.

        ``memory`` has what the rank holds at the end of a step, its peak and its capacity, ``held``
        what the peak is made of. All ranks call it, and take two more steps.
        """
        answer = super().answer()
        if self.is_rehearsal:
            return answer
        device, outer = self.place.device, answer["memory"]
        taken = _taken(device, outer)
        parts = self.one_more(followed)
        if device.type == "cuda":
            parts["temporary"] += max(int(outer["peak"]) - sum(parts.values()), 0)
        peak = sum(parts.values())
        of = ALLOCATED if device.type == "cuda" else FOLLOWED
        answer["held"] = {**parts, "overhead": None if taken is None else taken - peak, "of": of}
        outer |= {"peak": peak, "peak_of": of}
        size, of = (self._limits and self._limits.limit) or _capacity(
            device, self.place.local_size)
        answer["capacity"] = {"bytes": size, "of": of}
        return answer


def followed(spec: Training, strategy: Strategy, batch: Batch) -> dict[str, int]:
    """Take two steps on a batch, and return what the second holds when it holds most.

    The first one shows what stays from step to step, such as buckets, before it is used again. All
    ranks call it.
    """
    live = LiveStorages(strategy.weights(), strategy.states())
    phases = phase_clock(strategy.place.device)
    phases.begin()
    for _ in range(2):
        live.restart()
        with live:
            strategy.forward_backward(batch, phases)
            live.gradients_are_there()
            strategy.update(phases)
            strategy.rebalance(phases)
    return live.at_peak()


def _taken(device: torch.device, told: dict[str, Any]) -> int | None:
    """Return what the allocator, or the resident set, took for the case; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return int(told["peak"]) if told.get("peak_of") == "process growth" else None


def _capacity(device: torch.device, local_size: int) -> tuple[int, str]:
    """Return the bytes that a rank could have, and what they are of."""
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
        elif dist.get_backend(place.group) == REHEARSAL:
            yield MemoryOperation(work, place)
        else:
            with _limited(work, place) as limits:
                yield MemoryOperation(work, place, limits)


@contextlib.contextmanager
def _limited(work: MemoryWork, place: Place) -> Iterator[Limits]:
    """Limit a try of a search, which says itself what would fit, after what any training takes."""
    assert work.search is not None
    with limits_of(place.device, place.local_size) as limits:
        try:
            taken_before(work.training, work.search.unit, place)
            limits.begin(work.search.limit_bytes)
            yield limits
        except Exception as error:
            if not (limits.limit and refused_memory(error)):
                raise
            raise MemoryError(str(error).partition("\n")[0]) from error


def taken_before(training: Training, unit: int, place: Place) -> None:
    """Have this process take what is no part of a training, by steps on a small model.

    Those are modules that are imported late, threads and their stacks, and what libraries keep that
    communicate. All ranks call it.
    """
    small = small_training(replace(training, batch_size=unit, data=SYNTHETIC))
    steps = TrainingOperation(small, place, validate=False)
    for _ in range(2):
        steps.prepare()
        steps.run()
    steps.one_more(followed)
    steps.close()
    del steps
    gc.collect()
