"""A training step as the measuring loop sees it: prepare, run, check."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from hpcbench.backends.counting_backend import REHEARSAL as REHEARSAL
from hpcbench.backends.counting_backend import CallLog, open_silent
from hpcbench.errors import CaseError
from hpcbench.kinds.training.plan.registry import strategy
from hpcbench.kinds.training.plan.step import is_dynamic
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.data import Loader
from hpcbench.kinds.training.run.fingerprint import Fingerprints, why_no_fingerprints
from hpcbench.kinds.training.run.memory import Peak
from hpcbench.kinds.training.run.models.build import SETTLING, forget, graphs
from hpcbench.kinds.training.run.parity import Disparity, Parity, parity, parity_training
from hpcbench.kinds.training.run.phases import PHASES, phase_clock
from hpcbench.kinds.training.run.step_counter import count_step
from hpcbench.kinds.training.run.strategies.base import Batch, Strategy
from hpcbench.operations.place import Place
from hpcbench.trace.schema import ARRIVAL

Found = TypeVar("Found")


class TrainingOperation:
    """One strategy on one model; a call is one optimizer step on new data.

    If ``validate``, `parity` is proved first, on a strategy of its own; this one then begins with
    the weights of the seed. Without communication there is none to prove: only losses are checked.
    """

    def __init__(self, spec: Training, place: Place, *, validate: bool) -> None:
        self.name = spec.name
        self.place = place
        self._silent: Place | None = None
        if spec.communication == "off":
            self._silent = place = silent(place, CallLog(counts=False))
            validate = False
        make = _strategy_class(spec.strategy)
        self._spec = spec
        self._loader = Loader(spec, place.device)
        self._forget()
        self._parity: Parity | None = parity(
            spec, place, make, self._loader.file) if validate else None
        self._unreported = self._parity.wrong if self._parity else None
        self._forget()
        self._peak = Peak(place.device)
        self._strategy: Strategy = make(spec, place)
        self._phases = phase_clock(place.device, time.perf_counter_ns)
        self._rows: list[int] = []
        self._step = 0
        self._loss = torch.zeros(())
        self._settle()
        self._has_twin = self._parity is not None and parity_training(spec) is not spec
        self._fingerprints = self._take_fingerprints()
        self._graphs = graphs() if spec.compile else 0

    def _forget(self) -> None:
        if self._spec.compile:
            forget()

    def _settle(self) -> None:
        """Exchange gradients until that is done as ever after; the weights stay the seed's.

        What is to be compiled is compiled by then.
        """
        phases = phase_clock(self.place.device, time.perf_counter_ns)
        for _ in range(max(self._strategy.settling, SETTLING if self._spec.compile else 0)):
            phases.begin()
            batch = self._loader.batch(0, *self._strategy.share)
            self._strategy.forward_backward(batch, phases)
            self._strategy.discard()

    def _take_fingerprints(self) -> Fingerprints | None:
        """Return what is known of a large model and its first gradients; None of others.

        All ranks call it. The weights stay the seed's.
        """
        strategy = self._strategy
        if not self._has_twin or why_no_fingerprints(strategy):
            return None
        found, phases = Fingerprints(strategy), phase_clock(self.place.device, time.perf_counter_ns)
        phases.begin()
        strategy.forward_backward(self._loader.batch(0, *strategy.share), phases)
        found.take_gradients()
        strategy.discard()
        return found

    def prepare(self) -> None:
        self._phases.settle()
        self._rows.append(len(self._phases.steps))

    def run(self) -> None:
        phases, strategy = self._phases, self._strategy
        phases.begin()
        batch = self._loader.batch(self._step, *strategy.share)
        phases.end("data")
        self._loss = strategy.forward_backward(batch, phases)
        strategy.update(phases)
        strategy.rebalance(phases)
        self._step += 1

    def drag(self, seconds: float) -> None:
        self._strategy.drag(seconds)

    def spoil(self) -> None:
        self._loss = torch.full((), math.nan)

    def check(self) -> Disparity | None:
        """Return the result of parity, the first time; then what is wrong with the last step."""
        if self._step == 1 and self._fingerprints:
            self._fingerprints.take_updates()
        disparity, self._unreported = self._unreported, None
        if disparity is not None:
            return disparity
        loss = float(self._loss)
        if self._step == 1 and self._parity and (wrong := self._parity.loss_wrong(loss)):
            return wrong
        if self._strategy.holds_loss and not math.isfinite(loss):
            return Disparity(1, 1, "losses", "loss", str(loss), "a finite number")
        if self._spec.compile and (anew := graphs() - self._graphs):
            return Disparity(anew, anew, "graphs", "graph", "compiled within a step",
                             "compiled before the first one")
        if self._strategy.updates_skipped():
            return Disparity(1, 1, "updates", "update", "skipped: fp16 gradients overflowed",
                             "a step of the optimizer")
        return None

    def answer(self) -> dict[str, Any]:
        """Return the values beside the rows: phases in ns, memory in bytes, parity.

        ``phases`` has a list of ``ns`` for each name, with an entry for every row of the trace: the
        sum over the steps of that row. ``balance``: this replica's samples of a next step;
        ``data``: how many samples a file has, and how many steps were taken. ``counted``: what one
        more step did (`counted_step.count_step`), taken now unless this is a rehearsal.
        """
        held, rows, peak = self._strategy.held(), self._phase_rows(), self._peak.read()
        answer: dict[str, Any] = {"phases": rows, "memory": {
            "parameters": held.parameters, "gradients": held.gradients,
            "optimizer_state": held.optimizer, **peak}}
        if self._parity:
            answer["parity"] = {"on": self._parity.on, "share": self._parity.share}
            if self._parity.worst:
                answer["parity"] |= dict(zip(
                    ("what", "worst", "error", "allowed"), self._parity.worst, strict=True))
        if self._parity and self.place.world_size > 1 and self._strategy.replicated():
            answer["replicated"] = {
                "of": "weights after the last step", "checksum": checksum(self._strategy.modules())}
        if self._has_twin:
            answer |= self._told_fingerprints()
        if is_dynamic(self._spec):
            answer["balance"] = {"samples": self._strategy.share[1]}
        if self._loader.source.n_samples is not None:
            answer["data"] = {"samples": self._loader.source.n_samples, "steps": self._step}
        if self._spec.count_step and not self.is_rehearsal:
            self._count(answer)
        return answer

    def _told_fingerprints(self) -> dict[str, Any]:
        """Return the fingerprints, on rank 0, or why there are none. All ranks call it."""
        told = self._fingerprints.answer() if self._fingerprints else {
            "missing": why_no_fingerprints(self._strategy)}
        return {"fingerprints": told} if self.place.rank == 0 else {}

    @property
    def is_rehearsal(self) -> bool:
        """Return whether its group is that of a dry run."""
        return self._silent is None and dist.get_backend(self.place.group) == REHEARSAL

    def _count(self, answer: dict[str, Any]) -> None:
        counted = self.one_more(count_step)
        for name in ("activations", "activations_of"):
            if name in counted:
                answer["memory"][name] = counted.pop(name)
        answer["counted"] = counted

    def one_more(self, take: Callable[[Training, Strategy, Batch], Found]) -> Found:
        """Return what ``take`` finds in a step on the next batch, which it takes itself."""
        batch = self._loader.batch(self._step, *self._strategy.share)
        return take(self._spec, self._strategy, batch)

    def _phase_rows(self) -> dict[str, Any]:
        self._phases.settle()
        steps = self._phases.steps
        present = dict.fromkeys(name for step in steps for name in step)
        names = [*(name for name in PHASES if name in present),
                 *(name for name in present if name.startswith(ARRIVAL))]
        bounds = [*self._rows, len(steps)]
        rows = [steps[since:until] for since, until in zip(bounds, bounds[1:], strict=False)]
        return {"names": names, "ns": [
            [sum(step.get(name, 0) for step in row) for row in rows] for name in names]}

    def close(self) -> None:
        self._strategy.close()
        if self._silent is not None:
            dist.destroy_process_group(self._silent.group)


def checksum(modules: Iterable[nn.Module]) -> int:
    """Return the CRC-32 of all parameters, bit by bit, copied to the host one by one."""
    found = 0
    for module in modules:
        for parameter in module.parameters():
            data = parameter.detach().to("cpu").contiguous().view(-1).view(torch.uint8)
            found = zlib.crc32(data.numpy(), found)
    return found


def silent(place: Place, ledger: CallLog) -> Place:
    """Return the place on a new group of the same ranks that communicates nothing."""
    return replace(place, group=open_silent(place.numbers, ledger))


def _strategy_class(name: str) -> Callable[[Training, Place], Strategy]:
    """Return what makes the strategy of a name. Raises CaseError if it cannot be loaded."""
    spec = strategy(name)
    if spec is None:
        raise CaseError(f"strategy {name} is not installed on this rank; install the plug-in that "
                        "offers it on every node")
    module, _, member = spec.runner.partition(":")
    try:
        return getattr(import_module(module), member)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise CaseError(f"{spec.runner} cannot be loaded: {error}") from error
