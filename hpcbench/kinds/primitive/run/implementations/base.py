"""A primitive as the measuring loop sees it: prepare, run, check; and its runner.

The base of implementations of a primitive, and messages that they send themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from hpcbench.config.axes import TORCH, library_of
from hpcbench.errors import CaseError
from hpcbench.kinds.primitive.plan.implementations import installed
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run.inputs import Inputs
from hpcbench.kinds.primitive.run.operands import Expected, compare
from hpcbench.measurement.runner import Runner
from hpcbench.operations.context import Context, called, output_of
from hpcbench.operations.data import Mismatch
from hpcbench.operations.functions import lines_of, load_functions, timed_call
from hpcbench.operations.place import Place, receiving, sending, start
from hpcbench.plan.workload import Workload
from hpcbench.registry import load


class PrimitiveOperation:
    """One implementation of a primitive on its own operands."""

    def __init__(self, spec: Primitive, place: Place) -> None:
        self.name = spec.name
        self.place = place
        inputs_path, runner_path = _classes(spec)
        self._inputs: Inputs = _named(inputs_path)(spec, place)
        self._implementation: Implementation[Any] = (
            FileFunction(self._inputs) if spec.file else _named(runner_path)(self._inputs))
        self._expected: Expected | None = None

    @property
    def output(self) -> torch.Tensor:
        return self._implementation.output

    def prepare(self) -> None:
        """Wipe every buffer that the next call fills; put back what it changes in place."""
        for buffer in self._implementation.scratch:
            buffer.fill_(float("nan"))
        self._implementation.restore()

    def run(self) -> None:
        self._implementation.run()

    def corrupt_output(self) -> None:
        output = self.output
        if output.numel():
            output[(-1,) * output.dim()] = float("nan")

    def answer(self) -> dict[str, Any]:
        return self._implementation.report()

    def close(self) -> None:
        self._implementation.close()

    def check(self) -> Mismatch | None:
        """Compare the output of the last call with the reference, which is made the first time."""
        if self._expected is None:
            self._expected = self._inputs.expected(self._implementation.part)
        return compare(self.output, self._expected)


class PrimitiveRunner(Runner):
    """Opens primitives. Plug-ins are found when it is made: in the template, before workers are."""

    def __init__(self) -> None:
        installed()

    def open(
        self, work: Workload, place: Place, *, validate: bool,
    ) -> PrimitiveOperation | AbstractContextManager[PrimitiveOperation]:
        assert isinstance(work, Primitive)
        return _of_file(work, place) if work.file else PrimitiveOperation(work, place)


@contextmanager
def _of_file(work: Primitive, place: Place) -> Iterator[PrimitiveOperation]:
    """Give an operation whose errors name the line of its file."""
    with lines_of(work.file):
        yield PrimitiveOperation(work, place)


def _classes(spec: Primitive) -> tuple[str, str]:
    """Return ``module:class`` of the inputs and of the runner; the latter is empty for a file.

    Raises CaseError if they are not installed."""
    if spec.file and (primitive := installed().primitives.get(spec.primitive)):
        return primitive.inputs, ""
    classes = installed().classes(spec.primitive, spec.implementation)
    if classes is None:
        raise CaseError(f"{spec.implementation} of {spec.primitive} is not installed on this "
                        "rank; install the plug-in that offers it on every node")
    return classes


def _named(path: str) -> Any:
    try:
        return load(path)
    except (ImportError, AttributeError) as error:
        raise CaseError(f"{path} cannot be loaded: {error}") from error


AnyInputs = TypeVar("AnyInputs", bound=Inputs)


class Implementation(Generic[AnyInputs]):
    """One way to do a primitive; subclasses allocate in ``__init__`` and define ``run``.

    Attributes:
        output: the result of the last ``run``.
        part: ``both``, ``compute`` or ``communicate``: the argument of ``Inputs.expected``.
        scratch: buffers that are wiped before each call, so that nothing of an earlier call can
            pass for a result of this one. `empty` adds to it."""

    output: torch.Tensor
    part = "both"

    def __init__(self, inputs: AnyInputs) -> None:
        self.inputs = inputs
        self.spec = inputs.spec
        self.group: Any = inputs.place.group
        self.ranks = inputs.place.world_size
        self.rank = inputs.place.rank
        self.scratch: list[torch.Tensor] = []

    def run(self) -> None:
        """Do it; on return ``output`` is complete, or ordered on the current stream."""
        raise NotImplementedError

    def restore(self) -> None:
        """Put back into buffers what a call starts from and overwrites; before each call."""

    def report(self) -> dict[str, Any]:
        """Return the values beside the rows, as plain JSON values."""
        return {}

    def close(self) -> None:
        """Close what was opened. All ranks call it."""

    def empty(self, *shape: int) -> torch.Tensor:
        """Return a buffer on the device that is wiped before each call."""
        buffer = torch.empty(shape, dtype=self.inputs.dtype, device=self.inputs.place.device)
        self.scratch.append(buffer)
        return buffer


class FileFunction(Implementation[Inputs]):
    """A function of a user's file (`hpcbench.operations.functions`)."""

    def __init__(self, inputs: Inputs) -> None:
        """Call the function, which gives what is timed. Raises CaseError if it is unusable."""
        super().__init__(inputs)
        spec = self.spec
        function = load_functions(spec.file, spec.sha256)[spec.implementation]
        context = Context(inputs.place, spec.dtype, inputs)
        self._call = timed_call(called(function, context, spec.dtype, (
            ("m", spec.m), ("n", spec.n), ("k", spec.k), ("order", spec.order), *spec.options)),
            spec.implementation)
        if not callable(self._call.output):
            self.scratch.append(output_of(self._call, spec.implementation))

    @property
    def output(self) -> torch.Tensor:
        """Return the output of the last call. Raises CaseError if it is no tensor."""
        return output_of(self._call, self.spec.implementation)

    def run(self) -> None:
        self._call.step()

    def restore(self) -> None:
        if self._call.prepare:
            self._call.prepare()


class Returning(Implementation[AnyInputs]):
    """``run`` replaces ``output``, empty before the first one, by a tensor that torch allocates."""

    def __init__(self, inputs: AnyInputs) -> None:
        super().__init__(inputs)
        self.output = torch.empty(0, dtype=inputs.dtype, device=inputs.place.device)

    def restore(self) -> None:
        """Wipe the last result: a later call can get the same memory."""
        self.output.fill_(float("nan"))


def by_messages(place: Place) -> bool:
    """Return whether messages between all ranks serve better than collectives of chunks.

    gloo's do. Its all_gather sends before it posts what it receives, so a link works one way at a
    time. Its reduce_scatter sends twice what is needed, and each call wakes two threads
    (benchmarks/results/overlap.md). Its messages are on the CPU only. Other backends keep their
    collectives: NCCL's take ways through the network that messages do not."""
    return place.device.type == "cpu" and library_of(
        TORCH + dist.get_backend(place.group), "cpu") == "gloo"


class Exchange:
    """Every rank sends every other one a part of each chunk; for the backends of `by_messages`.

    ``sent`` and ``received`` have a tensor (ranks, ...) a chunk, whose [r] is the part for, and
    of, rank r. The own ones are not used. A part must be contiguous.

    A receive may be posted before anything is sent, which NCCL would wait for for ever. gloo needs
    it: it sends the permission to send in the stream that carries its own data."""

    def __init__(
        self, place: Place, sent: Iterable[torch.Tensor], received: Iterable[torch.Tensor],
    ) -> None:
        ranks = place.world_size
        others = [(place.rank + distance) % ranks for distance in range(1, ranks)]
        self._receives = [[receiving(place, rank, parts[rank]) for rank in reversed(others)]
                          for parts in received]
        self._sends = [[sending(place, rank, parts[rank]) for rank in others] for parts in sent]

    def receive(self) -> list[Sequence[Any]]:
        """Post all receives; return those of each chunk."""
        return [start(messages) for messages in self._receives]

    def send(self, chunk: int) -> Sequence[Any]:
        return start(self._sends[chunk])

    def send_all(self) -> list[Any]:
        return [work for chunk in range(len(self._sends)) for work in self.send(chunk)]
