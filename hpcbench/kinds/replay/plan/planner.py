"""The workload of a recorded job, and the planner: one case for each backend and gap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbench.config.section import Block
from hpcbench.errors import ConfigError, FileError
from hpcbench.kinds.replay.block import ReplayBlock
from hpcbench.kinds.replay.plan.sequence import (
    CallSequence,
    ReadRecord,
    Request,
    buffer_elements,
    read_record,
    sequence_of,
    unequal_order,
    unfit_record,
)
from hpcbench.operations.collectives import DTYPE_BYTES, calls_of
from hpcbench.operations.traffic import form_id
from hpcbench.plan.case import Case, Planner, PlanRequest
from hpcbench.plan.order import ALPHA_S, CASE_S, bytes_per_s, device_kind
from hpcbench.plan.points import (
    COMMON_AXES,
    CommonPoint,
    Draft,
    assemble,
    common_points,
    further_checks,
    least_calls,
    listed_lengths,
    too_large,
)
from hpcbench.plan.support import resolve_device, traits_of, unfit_world
from hpcbench.plan.workload import Choice, Features, Label, Workload
from hpcbench.records import dataclass
from hpcbench.units import plural

if TYPE_CHECKING:
    from hpcbench.config.schema import Config

_CHECKS = 3
"""Assumed of a pass, for estimates: as many checks at least."""


@dataclass(frozen=True, slots=True)
class Replay(Workload):
    """The calls of a record, in order.

    ``sha256`` identifies the content of the ``file``, of which at most the first ``calls`` are
    issued; `plan.sequence.Request` has ``backend``, ``device`` and ``gaps``. From these follow:
    ``n_calls`` of ``recorded_calls`` are issued, ``size_bytes`` together; ``recorded_ns`` is their
    time in the record, None if unknown; ``left_out``: why others are not. ``dtype`` is the one with
    most bytes. ``signature``: index of the only form that is called, once; its ``form_id``, and the
    ranks that call it."""

    file: str
    sha256: str
    backend: str
    device: str
    gaps: str
    calls: int
    dtype: str
    n_calls: int = 0
    recorded_calls: int = 0
    size_bytes: int = 0
    recorded_ns: int | None = None
    collectives: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    groups: int = 1
    signature: int | None = None
    form_id: str = ""
    callers: tuple[int, ...] = ()

    def label(self, world_size: int) -> Label:
        what = [f"gaps={self.gaps}", f"calls={self.n_calls}"] if self.signature is None else [
            f"signature={self.signature}", *self.collectives, self.dtype, f"{self.size_bytes}B"]
        return Label("replay", ["replay", Path(self.file).name, *what, f"ranks={world_size}"])

    @property
    def features(self) -> Features:
        return Features(
            implementer="torch.distributed", calls=calls_of(self.collectives, self.dtype),
            files={self.file: self.sha256}, enters_late=True,
            not_captured="cuda_graph: a replay waits on the host between its calls")

    def choice(self) -> Choice:
        task = {"sha256": self.sha256, "n_calls": self.n_calls, "size_bytes": self.size_bytes,
                "gaps": self.gaps, "signature": self.signature}
        # none of the numbers of calls is to be chosen: they answer different questions
        return Choice({**task, "calls": self.calls}, task)

    def request(self, ranks: int) -> Request:
        return Request(ranks, self.backend, self.device, self.calls, self.gaps, self.signature)


class ReplayPlanner(Planner):
    """Plans recorded jobs; each file is read once."""

    def __init__(self) -> None:
        self._records: dict[str, ReadRecord] = {}

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        assert isinstance(block, ReplayBlock)
        return {**listed_lengths(block, COMMON_AXES), "gaps": len(_gaps(block)),
                "signature": len(block.signature or (None,))}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        assert isinstance(block, ReplayBlock)
        if "dtype" in block.model_fields_set and block.dtype != ("fp32",):
            raise ConfigError("dtype: a replay has the types of its record; drop the key")
        read = self._read(block.traffic)
        forms = len(read.record.signatures)
        if block.signature and (others := {"gaps", "calls"} & block.model_fields_set):
            raise ConfigError(f"signature: a call alone has no {' and no '.join(sorted(others))}; "
                              "drop the key")
        if beyond := [one for one in block.signature or () if one >= forms]:
            raise ConfigError(f"signature: the record has {forms}, from 0 on, but no {beyond[0]}")
        for point in common_points(block, job):
            for signature, gaps in product(block.signature or (None,), _gaps(block)):
                draft = _draft(read, block, point, (gaps, signature), job)
                yield assemble(title, block, job, point, draft)

    def workload_from_json(self, data: Mapping[str, Any]) -> Replay:
        return Replay(**{**data, "collectives": tuple(data["collectives"]),
                         "left_out": tuple(data["left_out"]),
                         "callers": tuple(data.get("callers", ()))})

    def _read(self, path: str) -> ReadRecord:
        if path not in self._records:
            try:
                self._records[path] = read_record(path)
            except FileError as error:
                raise ConfigError(f"traffic: {error}") from None
        return self._records[path]


def _gaps(block: ReplayBlock) -> Sequence[str]:
    """Return the gaps of a block; a call alone has none."""
    return ("none",) if block.signature else block.gaps


def _draft(
    read: ReadRecord, block: ReplayBlock, point: CommonPoint, what: tuple[str, int | None],
    job: PlanRequest,
) -> Draft:
    """Return the draft of ``what``: gaps, and one form or all (None)."""
    (gaps, signature), calls = what, 1 if block.signature else block.calls
    device, ranks = resolve_device(point.backend, point.device), point.world_size
    request = Request(ranks, point.backend, device, calls, gaps, signature)
    skip = (unfit_world(point.backend, ranks, job.world_size)
            or unfit_record(read.record, ranks, alone=signature is not None)
            or _unfit_backend(point.backend, device))
    work = Replay(str(Path(block.traffic).absolute()), read.sha256, point.backend, device, gaps,
                  calls, "uint8", signature=signature)
    form = None if signature is None else read.record.signatures[signature]
    if form is not None:  # also of a skip, whose label names it
        work = replace(work, size_bytes=form.bytes, collectives=(form.collective,))
    memory, estimate_s = 0, 0.0
    if skip is None:
        sequence = sequence_of(read.record, request)
        work, memory = _workload(work, sequence), memory_bytes(sequence, checked=point.validate)
        if form is not None and form.backend == point.backend and sequence.forms:
            work = replace(work, form_id=form_id(read.record, form),
                           callers=sequence.forms[0].callers)
        estimate_s = _estimate_s(sequence, request, point, job.config)
        skip = _unfit_sequence(sequence) or too_large(memory, 0, device, job.config.hardware)
    return Draft(
        workload=work, device=device, validate=point.validate, memory_bytes=memory, skip=skip,
        estimate_s=estimate_s, identity={
            "kind": "replay", "sha256": read.sha256, "gaps": gaps, "calls": calls,
            **({} if signature is None else {"signature": signature})})


def _unfit_backend(backend: str, device: str) -> str | None:
    """Return why a backend cannot issue calls and wait for them later, or None."""
    traits = traits_of(backend, device)
    if device not in traits.devices:
        return f"{backend} does not run on {device}, only on {' or '.join(traits.devices)}"
    return f"calls of {backend} block: take another backend" if backend.startswith("mpi") else None


def _unfit_sequence(sequence: CallSequence) -> str | None:
    if not sequence.n_calls:
        return "no call is left to replay: " + (
            "; ".join(_reasons(sequence)) or "the record has no calls")
    return unequal_order(sequence)


def _reasons(sequence: CallSequence) -> tuple[str, ...]:
    return tuple(f"{plural(count, 'call')}: {reason}"
                 for reason, count in sequence.left_out.items())


def _workload(work: Replay, sequence: CallSequence) -> Replay:
    sizes = dict[str, int]()
    for form in sequence.forms:
        sizes[form.dtype] = sizes.get(form.dtype, 0) + form.size_bytes
    return replace(
        work, dtype=max(sizes, key=lambda name: sizes[name], default="uint8"),
        n_calls=sequence.n_calls, recorded_calls=sequence.recorded_calls,
        size_bytes=sequence.size_bytes, recorded_ns=sequence.recorded_ns,
        collectives=tuple(dict.fromkeys(one.collective for one in sequence.forms)),
        left_out=_reasons(sequence))


def memory_bytes(sequence: CallSequence, *, checked: bool) -> int:
    """Return the bytes of the rank with most: a buffer to give and one to get of each dtype.

    A check makes operands and the expected result of one call at a time."""
    held = [(gives * DTYPE_BYTES[name], gets * DTYPE_BYTES[name])
            for name, (gives, gets) in buffer_elements(sequence).items()]
    proof = max((gives + 2 * gets for gives, gets in held), default=0) if checked else 0
    return sum(map(sum, held)) + proof


def _estimate_s(
    sequence: CallSequence, request: Request, point: CommonPoint, config: Config,
) -> float:
    kind = device_kind(request.device)
    waits_s = max((sum(one.gap_ns) for one in sequence.ranks), default=0) / 1e9
    moved_s = sequence.size_bytes / bytes_per_s(kind, config.hardware, request.ranks)
    sample_s = waits_s + sequence.n_calls * ALPHA_S[kind] + moved_s
    checks = point.validate * (_CHECKS + further_checks(point, config))
    return CASE_S + (least_calls(point, config) + checks) * sample_s
