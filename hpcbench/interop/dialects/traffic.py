"""Recorded communication (`operations.traffic`) as a sweep: each recorded call, isolated.

Calls of one form and group shape are one block, with their sizes. Groups that together are all
ranks, each of equal size and stride, run concurrently, as in the job. Calls that no block can have
are left out, and a note counts them and their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from hpcbench.config.axes import BACKENDS
from hpcbench.config.section import Dialect
from hpcbench.errors import ConfigError
from hpcbench.operations.collectives import DTYPE_BYTES, collectives, rounded
from hpcbench.operations.traffic import (
    FORMAT,
    NO_SPLITS,
    CallForm,
    Signature,
    TrafficRecord,
    record_of,
)
from hpcbench.units import grouped, plural, size_text


class TrafficFile(Dialect):
    """A file of recorded communication; `operations.traffic` checks the values of its keys."""

    tool: ClassVar[str] = "hpcbench import"
    format: str = Field(description="Marks a file of this format.")
    version: int = Field(description="The format's version.")
    source: Any = Field(description="Programs that recorded it.")
    files: Any = Field(description="Files it was made of.")
    world_size: Any = Field(description="Ranks of the job.")
    missing: Any = Field(description="Ranks without a record.")
    groups: Any = Field(description="Groups of ranks.")
    signatures: Any = Field(description="Forms of calls, with how often each was called.")
    order: Any = Field(description="Calls of each rank.")
    notes: Any = Field(default=(), description="Assumptions.")

    @classmethod
    def own_keys(cls, raw: Mapping[str, Any]) -> tuple[str, ...]:
        """Return ``format`` if it names this format."""
        return ("format",) if raw.get("format") == FORMAT else ()

    def translated(self, file: str = "") -> dict[str, Any]:
        try:
            record = record_of(self.model_dump())
        except ValueError as error:
            raise ConfigError(f"the recorded communication: {error}") from None
        return sweep_of(record, file)


NOT_RECORDED = " is not recorded"
MESSAGES = "messages of one rank to another are no collective"
SMALL = "too few bytes for the equal parts of a case"
FEWEST_CALLS, MOST_UNEVEN = 6, 20
UNEVEN = (f"parts of different sizes: measured are the {MOST_UNEVEN} forms with most bytes, of "
          f"{FEWEST_CALLS} calls or more")


def sweep_of(record: TrafficRecord, file: str = "") -> dict[str, Any]:
    """Return the sweep of a record as a raw mapping. Raises ConfigError if nothing can be measured.

    Calls with parts of different sizes are replays of the record itself, the ``file``."""
    formed = [(one, _form(record, one)) for one in record.signatures]
    forms = grouped((form, one) for one, form in formed if isinstance(form, CallForm))
    alone = _uneven(formed) if file else []
    uneven = grouped((str(record.signatures[index].backend), index) for index in alone)
    formed = [one for index, one in enumerate(formed) if index not in alone]
    if not forms and not uneven:
        reasons = dict.fromkeys(form for _, form in formed if isinstance(form, str))
        raise ConfigError("the recorded communication has no call that can be measured: "
                          + ("; ".join(reasons) or "it has no calls"))
    others = (note for note in record.notes if not note.endswith(NOT_RECORDED))
    return {"name": "replay", "notes": [*_notes(record, formed), *others],
            "benchmarks": [*(_block(form, same, record.world_size)
                             for form, same in forms.items()),
                           *({"kind": "replay", "traffic": file, "backend": backend,
                              "signature": indices} for backend, indices in uneven.items())]}


def _uneven(formed: Sequence[tuple[Signature, CallForm | str]]) -> list[int]:
    """Return the indices of the measured signatures with parts of different sizes: with new parts
    in each call there may be thousands."""
    able = [index for index, (one, form) in enumerate(formed)
            if form == UNEVEN and one.count >= FEWEST_CALLS]
    by_bytes = sorted(able, key=lambda index: -formed[index][0].count * formed[index][0].bytes)
    return sorted(by_bytes[:MOST_UNEVEN])


def left_out(record: TrafficRecord, one: Signature) -> str:
    """Return why a signature is no case of a collective; "" if it is one."""
    form = _form(record, one)
    return form if isinstance(form, str) else ""


def form_of(record: TrafficRecord, one: Signature) -> CallForm | None:
    """Return the form that is measured for a signature; None if it is left out."""
    form = _form(record, one)
    return form if isinstance(form, CallForm) else None


def _form(record: TrafficRecord, signature: Signature) -> CallForm | str:
    """Return the form of a signature, or why it is left out."""
    spec = collectives().get(signature.collective)
    if spec is None or signature.pair is not None:
        return f"{signature.collective} is no collective here" if spec is None else (
            MESSAGES)
    if len(record.groups[signature.group].ranks) < max(spec.min_world_size, 2):
        return f"{signature.collective} of a rank alone sends nothing"
    if spec.moves_data and signature.dtype not in DTYPE_BYTES:
        return f"dtype {signature.dtype} is none of hpcbench"
    if spec.moves_data and not signature.bytes:
        return "calls without data send nothing"
    if signature.backend is None:
        return "the backend is not recorded: import it again with --backend NAME"
    if signature.backend not in BACKENDS:
        return f"backend {signature.backend} is none of hpcbench"
    if signature.is_uneven(len(record.groups[signature.group].ranks)):
        return UNEVEN if signature.rows or signature.collective != "all_to_all" else NO_SPLITS
    size, stride = _shape(record, signature.group)
    collective, dtype = signature.collective, signature.dtype
    if spec.moves_data and not rounded(collective, str(dtype), size, signature.bytes)[0]:
        return SMALL
    return CallForm(
        collective, signature.backend, dtype if spec.moves_data and dtype else "uint8",
        (signature.operator or "sum") if spec.has_op else None,
        (signature.root or 0) if spec.has_root else None, size, stride)


def _shape(record: TrafficRecord, group: int) -> tuple[int, int]:
    """Return how many ranks a group has, and how far apart they are where its like cover the job.

    The distance is 0 where they do not: then as many ranks from the first on stand for them."""
    ranks = record.groups[group].ranks
    size, stride = len(ranks), _stride(ranks)
    alike = {one.ranks for one in record.groups if len(one.ranks) == size
             and _stride(one.ranks) == stride}
    covered = sorted(rank for ranks in alike for rank in ranks)
    return size, stride if stride and covered == [*range(record.world_size)] else 0


def _stride(ranks: Sequence[int]) -> int:
    """Return how far apart ranks are; 0: not evenly."""
    apart = {after - before for before, after in zip(ranks, ranks[1:], strict=False)}
    return apart.pop() if len(apart) == 1 and min(apart) > 0 else 0


def _block(form: CallForm, alike: Sequence[Signature], recorded: int) -> dict[str, Any]:
    spec = collectives()[form.collective]
    options = {"op": form.operator, "root": form.root}
    place: dict[str, Any] = {"world_size": "all" if form.stride else form.ranks}
    if form.stride and form.ranks < recorded:  # a group of all ranks is all, also of fewer
        place["groups"] = {"size": form.ranks, "stride": form.stride}
    sizes = {"size": sorted({one.bytes for one in alike})} if spec.moves_data else {}
    return {"kind": "collective", "collective": form.collective, "backend": form.backend,
            "dtype": form.dtype, **{key: value for key, value in options.items()
                                    if value is not None}, **place, **sizes}


def _notes(
    record: TrafficRecord, formed: Sequence[tuple[Signature, CallForm | str]],
) -> Iterator[str]:
    calls = sum(one.count for one in record.signatures)
    yield (f"replay of {plural(calls, 'call')} recorded on {plural(record.world_size, 'rank')} "
           f"({', '.join(record.source)}): each isolated")
    left_out = grouped((form, one) for one, form in formed if isinstance(form, str))
    for reason, same in left_out.items():
        count, size = sum(one.count for one in same), sum(one.count * one.bytes for one in same)
        yield f"left out: {plural(count, 'call')}, {size_text(size)}: {reason}"
    kept = [(one, form) for one, form in formed if isinstance(form, CallForm)]
    for name, what in (("operator", "sum"), ("root", "rank 0")):
        unknown = {one.collective for one, form in kept
                   if getattr(one, name) is None and getattr(form, name) is not None}
        if unknown:
            yield f"the {name} of {', '.join(sorted(unknown))}{NOT_RECORDED}: {what} is measured"
    if partly := sum(not form.stride for _, form in kept):
        yield (f"{plural(partly, 'form')} of calls in groups that are not all ranks: measured on "
               "as many ranks from rank 0 on")
