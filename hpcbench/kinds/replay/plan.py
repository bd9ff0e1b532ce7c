"""Recorded jobs: the workload, its planner, and the calls of a record as ranks issue them again.

There is one case for each backend and gap. A call is kept if all its ranks have it, so that none
waits for another without end. On fewer ranks than recorded, a group of all recorded ranks becomes
all ranks of the run, with the sizes of its calls as nccl-tests counts them; other groups, roots and
messages are kept where all their ranks are there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbench.config.axes import library_of
from hpcbench.config.section import Block
from hpcbench.errors import ConfigError, FileError
from hpcbench.kinds.replay.block import ReplayBlock
from hpcbench.operations import traffic
from hpcbench.operations.collectives import DTYPE_BYTES, Call, calls_of, collectives
from hpcbench.operations.traffic import form_id
from hpcbench.plan import points
from hpcbench.plan.case import Case, Planner, PlanRequest
from hpcbench.plan.order import ALPHA_S, CASE_S, bytes_per_s, device_kind
from hpcbench.plan.support import resolve_device, traits_of, unfit_world, unsupported
from hpcbench.plan.workload import Choice, Features, Label, Workload
from hpcbench.records import dataclass
from hpcbench.texts import file_hash
from hpcbench.units import plural

if TYPE_CHECKING:
    from hpcbench.config.schema import Config


IN_FLIGHT = 64
"""Calls that a rank has in flight at most, unless its record needs more (`most_in_flight`)."""
_WHOLE = ("all_reduce", "broadcast", "reduce", traffic.SEND_RECV)
Key = tuple[int, int, int]
"""The key that ranks of a call share: signature, sequence, and which of several such."""


@dataclass(frozen=True, slots=True)
class Form:
    """One form of call on the ranks of this run.

    ``ranks`` are global, ``root`` and ``pair`` are positions among them; groups of one ``group``
    number share a communicator. ``parts``: elements of each rank's part, or of the whole buffer, or
    none. ``rows``: elements that each rank of an uneven all_to_all sends to each; empty: even."""

    collective: str
    dtype: str
    op: str | None
    root: int
    group: int
    ranks: tuple[int, ...]
    parts: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...] = ()
    pair: tuple[int, int] | None = None
    size_bytes: int = 0

    @property
    def callers(self) -> tuple[int, ...]:
        """Return the global ranks that issue it."""
        return self.ranks if self.pair is None else tuple(self.ranks[one] for one in self.pair)

    def elements(self, position: int) -> tuple[int, int]:
        """Return the elements that a rank of the group gives and gets; in place counts as got."""
        total = sum(self.parts)
        if self.pair is not None:
            return (total, 0) if position == self.pair[0] else (0, total)
        if self.rows:
            return sum(self.rows[position]), sum(row[position] for row in self.rows)
        if self.collective in _WHOLE or not self.parts:
            return 0, total
        part, at_root = self.parts[position], total if position == self.root else 0
        return {"all_gather": (part, total), "reduce_scatter": (total, part),
                "gather": (part, at_root), "scatter": (at_root, part)}.get(
                    self.collective, (total, total))


@dataclass(frozen=True, slots=True)
class RankCalls:
    """The calls of one rank: indices of forms, and the ns to wait after the issue before."""

    forms: tuple[int, ...]
    gap_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CallSequence:
    """The calls of all ranks. ``n_calls`` of ``recorded_calls`` are kept.

    ``recorded_ns``: from the first issue to the last in the record, of the slowest rank; None where
    a gap is unknown. ``left_out``: calls by why they are left out."""

    forms: tuple[Form, ...]
    ranks: tuple[RankCalls, ...]
    n_calls: int
    recorded_calls: int
    size_bytes: int
    recorded_ns: int | None
    left_out: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Request:
    """Which part of a record: on so many ranks, a backend and device; how many calls, which gaps.

    ``signature``: the only form; None: all forms."""

    ranks: int
    backend: str
    device: str
    calls: int
    gaps: str
    signature: int | None = None


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record, and the hash of its file."""

    record: traffic.TrafficRecord
    sha256: str


def read_record(path: str) -> ReadRecord:
    """Return the record of a file. Raises FileError if it is none, or lies elsewhere."""
    record, content = traffic.read_with_content(Path(path))
    return ReadRecord(record, file_hash(content))


def unfit_record(record: traffic.TrafficRecord, ranks: int, *, alone: bool = False) -> str | None:
    """Return why so many ranks cannot replay a record, or a form of call ``alone``, or None."""
    if ranks > record.world_size:
        return (f"world_size {ranks} is more than the {record.world_size} recorded ranks: give "
                f"world_size {record.world_size}")
    recorded = {one.rank for one in record.order}
    if lacking := [rank for rank in range(ranks) if rank not in recorded]:
        return (f"rank {lacking[0]} has no record, so its order is unknown: record all ranks"
                + ", or give the record itself to run, which replays each call isolated"
                * (not alone))
    return None


def sequence_of(record: traffic.TrafficRecord, request: Request) -> CallSequence:
    """Return the calls of the ranks, for whom `unfit_record` has to give None."""
    formed = [_form(record, index, request) for index in range(len(record.signatures))]
    orders = {one.rank: one for one in record.order if one.rank < request.ranks}
    keys = {rank: tuple(_keys(orders[rank])) for rank in sorted(orders)}
    callers = defaultdict[Key, dict[int, int]](dict)
    for rank, own in keys.items():
        for place, key in enumerate(own):
            if request.signature in (None, key[0]):
                callers[key][rank] = place
    left_out, complete = Counter[str](), list[tuple[int, Key]]()
    for key, places in callers.items():
        form = formed[key[0]]
        if isinstance(form, str):
            left_out[form] += 1
        elif {*places} != {*form.callers}:
            left_out["not recorded on all their ranks"] += 1
        else:
            complete.append((min(places.values()), key))
    kept = [key for _, key in sorted(complete)]
    if request.signature is None and (more := len(kept[request.calls:])):
        left_out[f"beyond the first {request.calls}"] += more
    kept = kept[:request.calls]
    gaps = {rank: _gaps(own, orders[rank].gap_ns, {*kept}) for rank, own in keys.items()}
    waits = gaps if request.gaps != "together" else {
        rank: _gaps(own, _without_waits(orders[rank]), {*kept}) for rank, own in keys.items()}
    used = sorted({key[0] for key in kept})
    forms = {index: form for index in used if isinstance(form := formed[index], Form)}
    return CallSequence(
        tuple(forms.values()),
        _ranks(waits, {index: number for number, index in enumerate(forms)}, request.gaps),
        len(kept), len(callers), sum(forms[key[0]].size_bytes for key in kept),
        _recorded_ns(gaps.values()), dict(left_out))


def _keys(order: traffic.RankOrder) -> Iterator[Key]:
    counts = Counter[tuple[int, int]]()
    for call in zip(order.signature, order.sequence, strict=True):
        yield (*call, counts[call])
        counts[call] += 1


def _without_waits(order: traffic.RankOrder) -> list[int | None]:
    """Return the gaps less the recorded wait of the call before, for ranks that come late.

    A gap that is shorter than that wait cannot include it: the rank went on meanwhile."""
    before = (None, *order.wait_ns)
    return [gap if gap is None or wait is None or gap < wait else gap - wait
            for gap, wait in zip(order.gap_ns, before, strict=False)]


def _gaps(
    own: Sequence[Key], gap_ns: Sequence[int | None], kept: Set[Key],
) -> dict[Key, int | None]:
    """Return the ns from each kept call's issue back to that of the kept one before it.

    0 of the first; None where the record does not know."""
    gaps, gap = dict[Key, int | None](), None
    for key, since in zip(own, gap_ns, strict=True):
        gap = None if gap is None or since is None else gap + since
        if key in kept:
            gaps[key] = gap if gaps else 0
            gap = 0
    return gaps


def _ranks(
    gaps: Mapping[int, Mapping[Key, int | None]], number: Mapping[int, int], how: str,
) -> tuple[RankCalls, ...]:
    """Return each rank's calls. Gaps that are not known are none."""
    least = dict[Key, int]()
    for own in gaps.values():
        for key, gap in own.items():
            least[key] = min(least.get(key, gap or 0), gap or 0)

    def waits(own: Mapping[Key, int | None]) -> Iterator[int]:
        for key, gap in own.items():
            yield {"recorded": gap or 0, "together": least[key], "none": 0}[how]

    return tuple(RankCalls(tuple(number[key[0]] for key in own), tuple(waits(own)))
                 for own in gaps.values())


def _recorded_ns(gaps: Iterable[Mapping[Key, int | None]]) -> int | None:
    spans = [list(own.values()) for own in gaps]
    known = [[gap for gap in own if gap is not None] for own in spans]
    return None if known != spans else max((sum(own) for own in known), default=0) or None


def _form(record: traffic.TrafficRecord, index: int, request: Request) -> Form | str:
    """Return the form of a signature on the ranks of the run, or why it is left out."""
    signature = record.signatures[index]
    recorded = record.groups[signature.group].ranks
    spec = collectives().get(signature.collective)
    folded = len(recorded) == record.world_size and request.ranks < record.world_size
    ranks = tuple(range(request.ranks)) if folded else recorded
    if spec is None or spec.is_plugin:
        return f"{signature.collective} is no collective here"
    if spec.moves_data and signature.dtype not in DTYPE_BYTES:
        return f"dtype {signature.dtype} is none of hpcbench"
    form = Form(
        signature.collective, str(signature.dtype) if spec.moves_data else "uint8",
        (signature.operator or "sum") if spec.has_op else None, signature.root or 0,
        signature.group, ranks, (), pair=signature.pair,
        size_bytes=signature.bytes if spec.moves_data else 0)
    missing = _missing(form, request, folded=folded)
    if missing or not spec.moves_data:
        return missing or form
    uneven = signature.is_uneven(len(recorded))
    if uneven and folded:
        return f"parts of different sizes on {request.ranks} ranks instead of all that sent them"
    return _sized(form, signature, request, uneven=uneven)


def _missing(form: Form, request: Request, *, folded: bool) -> str:
    if form.pair is not None and (
            max(form.pair) >= len(form.ranks) or form.pair[0] == form.pair[1]):
        return "messages between ranks that this run does not have"
    if [*form.ranks] != sorted(form.ranks):  # torch sorts them, and with them who is which
        return "in groups whose ranks are not in ascending order"
    if max(form.callers) >= request.ranks:
        return f"in groups that do not fit into {request.ranks} ranks"
    if form.root >= len(form.ranks):
        return f"{form.collective} with a root that this run does not have"
    if form.pair is not None and library_of(request.backend, request.device) != "gloo":
        return f"messages between two ranks, which are replayed on gloo, not {request.backend}"
    return "calls of a rank alone send nothing" if len(form.ranks) < 2 else ""


def _sized(form: Form, signature: traffic.Signature, request: Request, *,
           uneven: bool) -> Form | str:
    """Return the form with its parts, or why it is left out."""
    size, count = len(form.ranks), signature.bytes // DTYPE_BYTES[form.dtype]
    if signature.collective == "all_to_all" and uneven:
        if not signature.rows:
            return traffic.NO_SPLITS
        made = replace(form, parts=(0,), rows=signature.rows)
    elif uneven:
        made = replace(form, parts=tuple(part or 0 for part in signature.parts))
    elif signature.collective in _WHOLE:
        made = replace(form, parts=(count,))
    else:
        made = replace(form, parts=(count // size,) * size)
    if not any(sum(made.elements(position)) for position in range(size)):
        return "calls without data send nothing"
    call = Call(form.collective, form.dtype, form.op, "linear" if uneven else "even")
    if form.pair is None and (reason := unsupported(request.backend, request.device, [call])):
        return reason
    return made


def buffer_elements(sequence: CallSequence, rank: int | None = None) -> dict[str, tuple[int, int]]:
    """Return by dtype the most elements that a rank gives and gets; None: the most of all ranks."""
    elements = dict[str, tuple[int, int]]()
    for form in sequence.forms:
        for position, caller in enumerate(form.ranks):
            if rank in (None, caller):
                gives, gets = elements.get(form.dtype, (0, 0))
                given, got = form.elements(position)
                elements[form.dtype] = max(gives, given), max(gets, got)
    return elements


def most_in_flight(sequence: CallSequence) -> int:
    """Return how many calls a rank may have in flight: IN_FLIGHT, doubled until none waits forever.

    Ranks that issue calls of several groups in different orders would do so if each waited for its
    oldest call too soon."""
    limit = IN_FLIGHT
    while limit < sequence.n_calls and not _ends(sequence, limit):
        limit *= 2
    return limit


def _ends(sequence: CallSequence, limit: int) -> bool:
    """Return whether all ranks come to their ends with so many calls in flight."""
    keys = [_numbered(one, sequence.forms) for one in sequence.ranks]
    issued, at = Counter[tuple[int, int]](), [0] * len(keys)
    needs = [len(form.callers) for form in sequence.forms]
    moved = True
    while moved:
        moved = False
        for rank, own in enumerate(keys):
            while at[rank] < len(own) and (at[rank] < limit or issued[
                    own[at[rank] - limit]] == needs[own[at[rank] - limit][0]]):
                issued[own[at[rank]]] += 1
                at[rank] += 1
                moved = True
    return all(end == len(own) for end, own in zip(at, keys, strict=True))


def unequal_order(sequence: CallSequence) -> str | None:
    """Return which group's ranks issue its calls in different orders, or None.

    They would never match: backends match the calls of a group by their order."""
    first = dict[tuple[int, tuple[int, ...]], list[tuple[int, int]]]()
    for of_rank in sequence.ranks:
        own = defaultdict[tuple[int, tuple[int, ...]], list[tuple[int, int]]](list)
        for call in _numbered(of_rank, sequence.forms):
            own[sequence.forms[call[0]].group, sequence.forms[call[0]].callers].append(call)
        for group, calls in own.items():
            if first.setdefault(group, calls) != calls:
                return f"ranks {', '.join(map(str, group[1][:8]))} called in different orders"
    return None


def _numbered(calls: RankCalls, forms: Sequence[Form]) -> list[tuple[int, int]]:
    """Return each call of a rank as its form, and which call of the form it is."""
    counts = Counter[int]()
    numbered = []
    for form in calls.forms:
        numbered.append((form, counts[form]))
        counts[form] += 1
    return numbered


Group = tuple[int, tuple[int, ...]]
"""Number and ranks of a communicator."""


def divisions_of(
    sequence: CallSequence, world_size: int,
) -> Iterator[tuple[list[Group], list[tuple[int, ...]]]]:
    """Yield the communicators of a sequence that are opened together, as they share no rank, in as
    few divisions as they fit in order; and their ranks, with all others in one line more."""
    divisions = list[list[Group]]()
    for group in dict.fromkeys((form.group, form.ranks) for form in sequence.forms):
        free = next((one for one in divisions if not any(
            {*group[1]} & {*ranks} for _, ranks in one)), None)
        if free is None:
            divisions.append(free := [])
        free.append(group)
    for opened in divisions:
        lines = [ranks for _, ranks in opened]
        rest = tuple(sorted({*range(world_size)}.difference(*lines)))
        yield opened, [*lines, *([rest] if rest else [])]


_CHECKS = 3
"""Assumed of a pass, for estimates: as many checks at least."""


@dataclass(frozen=True, slots=True)
class Replay(Workload):
    """The calls of a record, in order.

    ``sha256`` identifies the content of the ``file``, of which at most the first ``calls`` are
    issued; `Request` has ``backend``, ``device`` and ``gaps``. From these follow:
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
        return Request(ranks, self.backend, self.device, self.calls, self.gaps,
                                 self.signature)


class ReplayPlanner(Planner):
    """Plans recorded jobs; each file is read once."""

    def __init__(self) -> None:
        self._records: dict[str, ReadRecord] = {}

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        assert isinstance(block, ReplayBlock)
        return {**points.listed_lengths(block, points.COMMON_AXES), "gaps": len(_gaps_of(block)),
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
        for point in points.common_points(block, job):
            for signature, gaps in product(block.signature or (None,), _gaps_of(block)):
                draft = _draft(read, block, point, (gaps, signature), job)
                yield points.assemble(title, block, job, point, draft)

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


def _gaps_of(block: ReplayBlock) -> Sequence[str]:
    """Return the gaps of a block; a call alone has none."""
    return ("none",) if block.signature else block.gaps


def _draft(
    read: ReadRecord, block: ReplayBlock, point: points.CommonPoint,
    what: tuple[str, int | None], job: PlanRequest,
) -> points.Draft:
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
        skip = _unfit_sequence(sequence) or points.too_large(memory, 0, device, job.config.hardware)
    return points.Draft(
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
    sequence: CallSequence, request: Request, point: points.CommonPoint,
    config: Config,
) -> float:
    kind = device_kind(request.device)
    waits_s = max((sum(one.gap_ns) for one in sequence.ranks), default=0) / 1e9
    moved_s = sequence.size_bytes / bytes_per_s(kind, config.hardware, request.ranks)
    sample_s = waits_s + sequence.n_calls * ALPHA_S[kind] + moved_s
    checks = point.validate * (_CHECKS + points.further_checks(point, config))
    return CASE_S + (points.least_calls(point, config) + checks) * sample_s
