"""Dynamic load balancing: a replica's share of the global batch is sized by its measured speed."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch

from hpcbench.kinds.training.plan.step import EVERY, divide, even_shares
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.models.model import Model
from hpcbench.operations.place import Place
from hpcbench.operations.torch_calls import all_gather_tensor


class OwnWork:
    """How long a rank's own forward and backward take, without its waiting for others' gradients.

    Until the last of its own gradients is there: the embedding's, since backward ends where
    forward begins. Gradients of the others are then still under way.
    """

    def __init__(self, model: Model, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._since, self._until = self._mark(), self._mark()
        for parameter in next(model.parts()).module.parameters():
            parameter.register_post_accumulate_grad_hook(self._ready)

    def begin(self) -> None:
        """Begin a step's forward pass."""
        self._since = self._mark()

    def _ready(self, _parameter: torch.Tensor) -> None:
        self._until = self._mark()

    def seconds(self) -> float:
        """Return the time of the last step; on a GPU its own, waiting until it is known."""
        if not self._on_gpu:
            return float(self._until - self._since)
        self._until.synchronize()
        return float(self._since.elapsed_time(self._until)) / 1e3  # ms

    def _mark(self) -> Any:
        """Return now: seconds, or an event of the current stream."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


class Balancer:
    """The shares of all replicas, the same on every rank.

    In every step each rank sends all others its time for one sample, so that all steps are alike.
    That takes place under the next step, at whose end it is looked at: nobody waits for it. From
    `EVERY` of them the samples are divided anew, by the medians.
    """

    def __init__(self, spec: Training, place: Place, model: Model) -> None:
        self.shares = even_shares(spec)
        self._spec = spec
        self._place = place
        self._work = OwnWork(model, place.device)
        self._samples = 0
        self._costs: list[list[float]] = []
        self._own = torch.zeros(1, dtype=torch.float64, device=place.device)
        self._all = torch.zeros(spec.dp, dtype=torch.float64, device=place.device)
        self._under_way: Any = None

    @property
    def share(self) -> tuple[int, int]:
        """Return which samples of the next global batch are this rank's: first and count."""
        rank = self._place.rank
        return sum(self.shares[:rank]), self.shares[rank]

    def begin(self, samples: int) -> None:
        """Begin the forward pass of so many samples."""
        self._samples = samples
        self._work.begin()

    def exchange(self) -> None:
        """Tell all ranks how long a sample took this one; divide anew if it is time."""
        if self._under_way is not None:
            self.finish()
            self._costs.append(self._all.tolist())
        if len(self._costs) == EVERY:
            self.shares = divide(self._spec, [median(each) for each in zip(
                *self._costs, strict=True)])
            self._costs.clear()
        self._own.fill_(self._work.seconds() / self._samples)
        self._under_way = all_gather_tensor(
            self._all, self._own, group=self._place.group, async_op=True)

    def finish(self) -> None:
        """Wait for what is under way."""
        if self._under_way is not None:
            self._under_way.wait()
            self._under_way = None
