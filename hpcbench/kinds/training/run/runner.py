"""The runner of trainings: a timed step, one that is counted, and replays.

Counting makes a step longer, so the counted one comes after all that are timed. torch shows each
operation of a rank to a mode, those of backward and of DTensors too.

A replay is the communication of a step without the step: its calls one after another, with as many
bytes, taken from a step of the same strategy on a group that communicates nothing."""

from __future__ import annotations

import contextlib
import math
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import psutil
import torch
import torch._dynamo  # every optimizer imports it: here, the template does so once for all workers
import torch.distributed as dist
from torch import nn
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from hpcbench.backends.counting_backend import (
    COUNTING_BACKEND,
    CallLog,
    RecordedCall,
    TensorSpec,
    Wait,
    open_counting_group,
)
from hpcbench.backends.devices import out_of_memory
from hpcbench.backends.groups import open_lines
from hpcbench.backends.python_group import GroupCall, called, is_call, watched
from hpcbench.errors import CaseError
from hpcbench.kinds.training.plan import spec as traffic
from hpcbench.kinds.training.plan.planner import advice
from hpcbench.kinds.training.plan.spec import strategy
from hpcbench.kinds.training.plan.step import is_dynamic
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.checkpoints import Checkpoints
from hpcbench.kinds.training.run.data import Loader
from hpcbench.kinds.training.run.memory import LiveBytes, Peak
from hpcbench.kinds.training.run.models.build import WARMUP_CALLS, forget, graphs
from hpcbench.kinds.training.run.parity import (
    Disparity,
    Parity,
    checksum,
    parity,
    parity_training,
)
from hpcbench.kinds.training.run.reference import Fingerprints, why_no_fingerprints
from hpcbench.kinds.training.run.strategies.base import PHASES, Batch, Strategy, phase_clock
from hpcbench.measurement.process import KernelFiles
from hpcbench.measurement.runner import Runner
from hpcbench.operations.place import AnyOperation, Place
from hpcbench.plan.workload import Workload
from hpcbench.registry import load
from hpcbench.trace.schema import ARRIVAL, CHECKSUM
from hpcbench.units import round_bytes

_PLAIN = (torch.Tensor, nn.Parameter)
_OF_CPU = "_scaled_dot_product_flash_attention_for_cpu"
_GROUPED = "_grouped_mm"
_FUSED_LOSS = "_linear_cross_entropy_batch_chunked"
_ATTENTION_BACKWARD = frozenset({
    "_scaled_dot_product_flash_attention_backward", f"{_OF_CPU}_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward"})
"""Their first arguments are the gradient of the result, queries, keys and values."""


class StepCounter(TorchDispatchMode):  # type: ignore[misc]
    """Counts calls and operations while it is entered.

    Attributes:
        calls: the collectives of this rank, in order.
        flops: by torch's formulas (`torch.utils.flop_counter`).
        scores_again_flops: of these, scores that a fused attention computes again in backward.
        unknown: operations on groups that are not known, and so not in ``calls``.
        activations: their peak bytes; None until `stop_memory`."""

    supports_higher_order_operators = True
    """As compiled blocks have, which are not counted."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()
        self.calls: list[GroupCall] = []
        self.flops = self.scores_again_flops = 0
        self.unknown: set[str] = set()
        self.activations: int | None = None
        self._live: LiveBytes | None = LiveBytes(parameters)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def stop_memory(self) -> None:
        """Note no more memory: later results are not kept for backward."""
        if self._live:
            self.activations, self._live = self._live.peak(), None

    def note(self, calls: Sequence[GroupCall]) -> None:
        self.calls += calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # a subclass does it by operations on its own tensors
        named = kwargs or {}
        result = func(*args, **named)
        if not hasattr(func, "_schema"):  # of several operations, in a compiled block
            return result
        if is_call(func):
            try:
                self.calls += called(func, args, result)
            except KeyError as error:
                self.unknown.add(str(error.args[0]))
        else:
            self._count(func, args, named, result)
        if self._live:
            self._live.note(func, (args, named), result)
        return result

    def _count(self, func: Any, args: Any, named: Any, result: Any) -> None:
        name = func._schema.name.partition("::")[2]
        if name in _ATTENTION_BACKWARD:
            gradient, queries, keys, values = (one.shape for one in args[:4])
            self.flops += flop_counter.sdpa_backward_flop_count(gradient, queries, keys, values)
            batch, heads, tokens, extent = queries
            self.scores_again_flops += flop_counter.bmm_flop(
                (batch * heads, tokens, extent), (batch * heads, extent, keys[2]))
        elif name == _FUSED_LOSS:  # logits, and gradients of their inputs and weights
            self.flops += 2 * args[0].numel() * len(args[1]) * (1 + sum(args[12:14]))
        elif name == _OF_CPU:  # torch 2.13 has no formula for it
            self.flops += flop_counter.sdpa_flop_count(*(one.shape for one in args[:3]))
        elif name == _GROUPED:  # rows times the matrix of their group, or their sum for each group
            (rows, inputs), weights = args[0].shape, args[1]
            self.flops += 2 * rows * inputs * weights.shape[-1]
        elif formula := flop_counter.flop_registry.get(func._overloadpacket):
            self.flops += formula(*args, **named, out_val=result)


def take_step(_: Training, strategy: Strategy, batch: Batch,
              at_update: Callable[[], object] = lambda: None) -> None:
    phases = phase_clock(strategy.place.device)
    phases.begin()
    strategy.forward_backward(batch, phases)
    at_update()
    strategy.update(phases)
    strategy.rebalance(phases)


_COMPILED = "the kernels that torch.compile makes are no operations that torch counts"
_ACTIVATIONS = "results of operations, but for copies and gradients of parameters"


def count_step(spec: Training, strategy: Strategy, batch: Batch) -> dict[str, Any]:
    """Take a step on a batch and count it; all ranks call it. It changes the weights.

    ``calls`` maps each collective to its number, size and bytes on the wire; ``missing`` has
    reasons."""
    parameters = [one for module in strategy.modules() for one in module.parameters()]
    counter = StepCounter(parameters)
    with watched(strategy.groups(), counter.note), counter:
        take_step(spec, strategy, batch, counter.stop_memory)
    missing: dict[str, str] = {}
    if spec.communication == "off":
        missing["calls"] = "its groups move nothing"
    elif counter.unknown:
        missing["calls"] = (
            f"it called {', '.join(sorted(counter.unknown))}, whose sizes are not known")
    elif strategy.uncounted:
        missing["calls"] = strategy.uncounted
    elif spec.compile and spec.tp > 1:
        missing["calls"] = "what compiled blocks call is no operation that torch shows"
    if spec.compile:
        missing |= dict.fromkeys(("flops", "activations"), _COMPILED)
    counted: dict[str, Any] = {"missing": missing}
    if "calls" not in missing:
        parts = (traffic.calls(one.collective, one.ranks, [one.size_bytes])
                 for one in counter.calls)
        counted["calls"] = {one.collective: [one.count, one.size_bytes, one.wire_bytes]
                            for one in traffic.together(parts)}  # as predictions have them
    if "flops" not in missing:
        counted["flops"] = counter.flops - counter.scores_again_flops
        counted["scores_again_flops"] = counter.scores_again_flops
    if "activations" not in missing:
        counted |= {"activations": counter.activations, "activations_of": _ACTIVATIONS}
    return counted


Found = TypeVar("Found")


class TrainingOperation:
    """One strategy on one model; a call is one optimizer step on new data.

    If ``validate``, `parity` is proved first, on a strategy of its own. Without communication only
    losses are checked."""

    def __init__(self, spec: Training, place: Place, *, validate: bool) -> None:
        self.name = spec.name
        self.place = place
        self._silent: Place | None = None
        if spec.communication == "off":
            self._silent = place = replace(
                place, group=open_counting_group(place.numbers, CallLog(counts=False)))
            validate = False
        make = _strategy_class(spec.strategy)
        self._spec = spec
        self._loader = Loader(spec, place.device)
        drop = forget if spec.compile else lambda: None
        drop()
        self._parity: Parity | None = parity(
            spec, place, make, self._loader.file) if validate else None
        self._unreported = self._parity.wrong if self._parity else None
        drop()
        self._peak = Peak(place.device)
        self._strategy: Strategy = make(spec, place)
        self._phases = phase_clock(place.device)
        self._rows: list[int] = []
        self._step = 0
        self._loss = torch.zeros(())
        self._checkpoints = (Checkpoints(spec, place)
                             if spec.checkpoint_every and not self.is_dry_run else None)
        self._warm_up()
        self._has_twin = self._parity is not None and parity_training(spec) is not spec
        self._fingerprints = self._record_fingerprints()
        self._graphs = graphs() if spec.compile else 0

    def _warm_up(self) -> None:
        """Step until the communication pattern is stable and all is compiled; weights stay."""
        phases = phase_clock(self.place.device)
        for _ in range(max(self._strategy.warmup_calls, WARMUP_CALLS if self._spec.compile else 0)):
            phases.begin()
            batch = self._loader.batch(0, *self._strategy.share)
            self._strategy.forward_backward(batch, phases)
            self._strategy.discard()

    def _record_fingerprints(self) -> Fingerprints | None:
        strategy = self._strategy
        if not self._has_twin or why_no_fingerprints(strategy):
            return None
        fingerprints, phases = Fingerprints(strategy), phase_clock(self.place.device)
        phases.begin()
        strategy.forward_backward(self._loader.batch(0, *strategy.share), phases)
        fingerprints.record_gradients()
        strategy.discard()
        return fingerprints

    def prepare(self) -> None:
        self._phases.resolve()
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
        if self._checkpoints:
            self._checkpoints.after(self._step, strategy)

    def slow_down(self, seconds: float) -> None:
        self._strategy.slow_down(seconds)

    def corrupt_output(self) -> None:
        self._loss = torch.full((), math.nan)

    def check(self) -> Disparity | None:
        """Return the result of parity, the first time; then the error of the last step."""
        if self._step == 1 and self._fingerprints:
            self._fingerprints.record_updates()
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

        ``phases`` has a list of ``ns`` for each name: for every row of the trace the sum over its
        steps. ``counted``: one more step (`count_step`), taken now unless this is a dry run."""
        answer: dict[str, Any] = {"phases": self._phase_rows(), "memory": {
            **self._strategy.held(), **self._peak.read()}}
        if self._parity:
            answer[CHECKSUM] = self._parity.checksum
            answer["parity"] = {"on": self._parity.on, "share": self._parity.share}
            if self._parity.worst:
                answer["parity"] |= dict(zip(
                    ("what", "worst", "error", "allowed"), self._parity.worst, strict=True))
        if self._parity and self.place.world_size > 1 and self._strategy.replicated():
            answer["replicated"] = {
                "of": "weights after the last step", "checksum": checksum(self._strategy.modules())}
        if self._has_twin:  # all ranks take part in the answer, which is rank 0's
            found = self._fingerprints.answer() if self._fingerprints else {
                "missing": why_no_fingerprints(self._strategy)}
            answer |= {"fingerprints": found} if self.place.rank == 0 else {}
        if self._checkpoints:
            answer["checkpoint"] = self._checkpoints.answer()
        if is_dynamic(self._spec):
            answer["balance"] = {"samples": self._strategy.share[1]}
        if self._loader.source.n_samples is not None:
            answer["data"] = {"samples": self._loader.source.n_samples, "steps": self._step}
        takes_more = self._spec.count_step and self._spec.trains
        if not self.is_dry_run and (more := self._strategy.measured(
                partial(self.one_more, take_step) if takes_more else None)):
            answer["measured"] = more
        if self._spec.count_step and not self.is_dry_run:
            answer["counted"] = counted = self.one_more(count_step)
            answer["memory"] |= {name: counted.pop(name) for name in (
                "activations", "activations_of") if name in counted}
        return answer

    @property
    def is_dry_run(self) -> bool:
        return self._silent is None and dist.get_backend(self.place.group) == COUNTING_BACKEND

    def one_more(self, observe: Callable[[Training, Strategy, Batch], Found]) -> Found:
        batch = self._loader.batch(self._step, *self._strategy.share)
        return observe(self._spec, self._strategy, batch)

    def _phase_rows(self) -> dict[str, Any]:
        self._phases.resolve()
        steps = self._phases.steps
        present = dict.fromkeys(name for step in steps for name in step)
        names = [*(name for name in PHASES if name in present),
                 *(name for name in present if name.startswith(ARRIVAL))]
        bounds = [*self._rows, len(steps)]
        rows = [steps[since:until] for since, until in zip(bounds, bounds[1:], strict=False)]
        return {"names": names, "ns": [
            [sum(step.get(name, 0) for step in row) for row in rows] for name in names]}

    def close(self) -> None:
        if self._checkpoints:
            self._checkpoints.close()
        self._strategy.close()
        if self._silent is not None:
            dist.destroy_process_group(self._silent.group)


def _strategy_class(name: str) -> Callable[[Training, Place], Strategy]:
    """Return the class or factory of a strategy. Raises CaseError if it cannot be loaded."""
    spec = strategy(name)
    if spec is None:
        raise CaseError(f"strategy {name} is not installed on this rank; install the plug-in that "
                        "offers it on every node")
    try:
        return load(spec.runner)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise CaseError(f"{spec.runner} cannot be loaded: {error}") from error


Program = Sequence[RecordedCall | Wait]
Works = dict[int, Sequence[Any]]  # entry of a message in the program -> what to wait for
_MESSAGES = {"send": dist.isend, "recv": dist.irecv}


class ReplayOperation:
    """A call is the collectives and messages of one step, on real groups.

    Collectives are waited for one by one, messages in the order of the step's own program."""

    def __init__(self, spec: Training, place: Place) -> None:
        self.name = spec.name
        self.place = place
        call_log = CallLog(counts=False)
        program = calls_of_step(spec, place, call_log)
        self._opened = [open_lines(place.group, lines, place.number) for lines in call_log.opened]
        groups = dict(zip(map(str, call_log.opened), self._opened, strict=True))
        self._steps = list(_steps(program, {str(None): place.group, **groups}))

    def prepare(self) -> None:
        """Do nothing: all buffers hold zeros, and stay so."""

    def run(self) -> None:
        works: Works = {}
        for step in self._steps:
            step(works)
        for left in works.values():
            _wait(left)

    def corrupt_output(self) -> None:
        """Do nothing: there is no result."""

    def check(self) -> None:
        """Return None: there is no result that could be wrong."""

    def answer(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        for group in self._opened:
            dist.destroy_process_group(group)


def calls_of_step(spec: Training, place: Place, call_log: CallLog) -> Program:
    """Return this rank's calls of a step; collective. ``call_log`` keeps the lines."""
    dry = replace(place, group=open_counting_group(place.numbers, call_log))
    work = replace(spec, communication="on", compile=False)  # compiled it calls the same
    operation = TrainingOperation(work, dry, validate=False)
    operation.prepare()
    operation.run()  # in which torch's pipelines agree on shapes
    call_log.keep()
    operation.run()
    program, call_log.program = call_log.program or [], None
    operation.close()
    dist.destroy_process_group(dry.group)
    return program


def _steps(program: Program, groups: dict[str, Any]) -> Iterator[Callable[[Works], None]]:
    """Yield a function for each part of a program, on buffers that equal calls share."""
    buffers: dict[object, torch.Tensor] = {}
    for key, entries in groupby(enumerate(program), lambda entry: isinstance(
            entry[1], RecordedCall) and (entry[1].method in _MESSAGES, entry[1].lines)):
        if not key:
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


def _made(value: Any, key: object, buffers: dict[object, torch.Tensor]) -> Any:
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

    @contextlib.contextmanager
    def open(self, work: Workload, place: Place, *, validate: bool) -> Iterator[AnyOperation]:
        assert isinstance(work, Training)
        with advising(work, place):
            yield (ReplayOperation(work, place) if work.communication == "only" else
                   TrainingOperation(work, place, validate=validate))


@contextlib.contextmanager
def advising(work: Training, place: Place) -> Iterator[None]:
    """Raise OutOfMemory, with settings that would fit, for a training that runs out of memory."""
    peak, (available, of) = Peak(place.device), _available(place.device, place.local_size)
    try:
        yield
    except Exception as error:
        if not out_of_memory(error):
            raise
        most = peak.read().get("peak")
        used = round_bytes(int(most)) if most is not None else "unknown"
        raise OutOfMemory(f"peak {used} of {round_bytes(available)} ({of}); "
                          f"{advice(work, available)}") from error


class OutOfMemory(MemoryError):
    """A training did not fit; the message proposes settings that would."""


def _available(device: torch.device, local_size: int) -> tuple[int, str]:
    """Return the bytes that a rank can have, as `Peak` counts them, and their source.

    On CUDA with what it holds already. ``local_size`` ranks share a node's memory."""
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
