"""Large models beside each other: did two layouts of one training compute the same?

Compared are the initial weights, the gradients of the first step and the optimizer's update, by
fingerprints that both cases recorded (`run.reference`). Bounds: weights are equal to the recorded
digits. Gradients may be off by their bounds e, which are independent: by the root of the sum of
squares. Roundings know nothing of the gradient: |g + r|^2 = |g|^2 + |r|^2 + 2 <g, r>, the last term
of at least h independent roundings, h the hidden extent, so norms are off by e^2 / 2 + e / sqrt(h),
at most by |r|. SGD is linear. The first step of AdamW is the gradient's sign times the rate (Kingma
and Ba, arXiv:1412.6980, 2015, algorithm 1): of normal gradients with errors e a share of atan(e) /
pi have another sign, and are off by twice the rate.

Also: cases of a run that are the same program, so that nobody ranks them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.training.plan import workload
from hpcbench.kinds.training.plan.predict import program_of
from hpcbench.kinds.training.plan.spec import alone_by, trained_part
from hpcbench.plan.case import Case
from hpcbench.records import dataclass
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import device_of
from hpcbench.units import grouped, plural, three_digits

SKETCH = 2.0
"""An estimate of a norm by 8 projections is larger than so many times the norm for one in 10 000
differences; one that is as large as its bound is one in 10 000 itself."""
_RECORDED = 1e-7  # of a norm: ten times the last of the 9 digits in which sums are recorded
_FP32 = 2.0**-24
_SAME = ("model", "family", "library", "layers", "hidden", "heads", "kv_heads", "inner", "vocab",
         "seq_length", "named_extents", "dtype", "optimizer", "data", "adapters", "global_batch")
"""Fields that must be equal for the same gradients, beside the trained part."""
Numbers = npt.NDArray[np.float64]
"""The norm of a parameter, which is 0 if it is not known, and its projections."""
Recorded = Mapping[str, Any]  # what rank 0 of a case recorded


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The case that a large model was compared with, and the result.

    ``case_id`` is empty where there is none, and ``missing`` is why. ``share``: the largest error
    over the allowed one, of ``what`` of ``name``; None if it is no number. ``on_ranks``: copies on
    the case's own ranks differ."""

    case_id: str = ""
    words: str = ""
    share: float | None = None
    what: str = ""
    name: str = ""
    n_wrong: int = 0
    n_compared: int = 0
    on_ranks: bool = False
    missing: str = ""


class _Error(NamedTuple):
    what: str
    name: str
    share: float


def counterparts(items: Sequence[CaseResult]) -> dict[str, Counterpart]:
    """Return the counterpart of each large model, by case id; others are left out.

    The base is a single process, else the first case, unless most others differ from it: then the
    first of those. Cases whose own copies differ are no base."""
    known = {item.case.case_id: recorded for item in items if item.statistics
             if (recorded := next((left["fingerprints"] for left in item.detail.values()
                               if "fingerprints" in left), None)) is not None}
    counterparts_found = {case_id: Counterpart(missing=str(recorded["missing"]))
                          for case_id, recorded in known.items() if "missing" in recorded}
    groups = grouped((_key(item), item.case) for item in items
                     if item.case.case_id in known and item.case.case_id not in counterparts_found)
    for cases in groups.values():
        counterparts_found |= _of_group(cases, known)
    return counterparts_found


def disagreement(counterpart: Counterpart) -> str:
    share = ("" if counterpart.share is None else
             f", by up to {three_digits(counterpart.share)} times what is allowed")
    differs = f"{counterpart.n_wrong} of {counterpart.n_compared} comparisons of the timed model"
    if counterpart.on_ranks:
        return (f"{differs} differ among the ranks' copies{share}, first {counterpart.what} of "
                f"{counterpart.name}: gradients or weights are not exchanged as they should be")
    return (f"{differs} are not those of {counterpart.words} ({counterpart.case_id}){share}, first "
            f"{counterpart.what} of {counterpart.name}: one of both computes something else; "
            "its times stand, but do not use them before you know which")


def _key(item: CaseResult) -> tuple[object, ...]:
    """Return the values that must be equal: CUDA draws other weights of the seed than a CPU."""
    work = workload.training_of(item.case)
    return (device_of(item) == "cuda", trained_part(work), *(getattr(work, name) for name in _SAME))


def _layout(case: Case) -> tuple[object, ...]:
    work = workload.training_of(case)
    return work.strategy, dict(work.options).get("over"), work.dp, work.tp, work.pp, work.cp


def _of_group(cases: Sequence[Case], recorded: Mapping[str, Recorded]) -> dict[str, Counterpart]:
    broken = _wrong({case.case_id: _judged(list(_errors(
        recorded[case.case_id], recorded[case.case_id], of_copies=True)), on_ranks=True)
        for case in cases})
    sound = [case for case in cases if case.case_id not in broken]
    if not sound:
        return broken
    counterparts = _of_sound(sound, recorded)
    if broken and all(one.missing for one in counterparts.values()):
        text = ", ".join(_strategy_text(case) for case in cases if case.case_id in broken)
        counterparts = {case_id: Counterpart(missing=f"the copies of {text} differ (HB158)")
                        for case_id in counterparts}
    return counterparts | broken


def _wrong(found: Mapping[str, Counterpart]) -> dict[str, Counterpart]:
    return {case_id: one for case_id, one in found.items() if one.n_wrong}


def _of_sound(cases: Sequence[Case], recorded: Mapping[str, Recorded]) -> dict[str, Counterpart]:
    first = next((case for case in cases if alone_by(workload.training_of(case))), cases[0])
    counterparts = _beside(first, cases, recorded)
    other = next((case for case in cases if counterparts[case.case_id].n_wrong
                  and _layout(case) != _layout(first)), None)
    again = _beside(other, cases, recorded) if other else counterparts
    return again if len(_wrong(again)) < len(_wrong(counterparts)) else counterparts


def _beside(
    base: Case, cases: Sequence[Case], recorded: Mapping[str, Recorded],
) -> dict[str, Counterpart]:
    """Compare all with a base; those laid out as it with one of the others, if one agrees."""
    others = [case for case in cases if _layout(case) != _layout(base)]
    counterparts = {case.case_id: compared(case, base, recorded) for case in others}
    agree = [case for case in others if not counterparts[case.case_id].n_wrong]
    other = next(iter([*agree, *others]), None)
    return counterparts | {case.case_id: compared(case, other, recorded) for case in cases
                           if case.case_id not in counterparts}


def compared(case: Case, other: Case | None, recorded: Mapping[str, Recorded]) -> Counterpart:
    if other is None:
        work = workload.training_of(case)
        return Counterpart(missing=(
            "no other layout of the run takes a step of the same samples, which are "
            f"{work.global_batch} of {work.seq_length} tokens"))
    own, theirs = recorded[case.case_id], recorded[other.case_id]
    if own[workload.WEIGHTS].keys() != theirs[workload.WEIGHTS].keys():
        return Counterpart(missing=f"{_strategy_text(other)} names its parameters otherwise")
    return _judged(list(_errors(own, theirs)), case_id=other.case_id, words=_strategy_text(other))


def _strategy_text(case: Case) -> str:
    return f"{workload.training_of(case).strategy} on {plural(case.world_size, 'rank')}"


def _judged(errors: Sequence[_Error], **of: Any) -> Counterpart:
    wrong = [error for error in errors if not error.share <= 1]
    worst = max(errors, key=lambda error: error.share, default=None)
    if worst is None:
        return Counterpart(**of)
    first = wrong[0] if wrong else worst
    share = worst.share if math.isfinite(worst.share) else None
    return Counterpart(share=share, what=first.what, name=first.name, n_wrong=len(wrong),
                       n_compared=len(errors), **of)


def _errors(one: Recorded, two: Recorded, *, of_copies: bool = False) -> Iterator[_Error]:
    """Yield the error of each parameter over what is allowed, of its worst copy.

    ``of_copies``: each copy beside the first one of the same case, where ranks have several."""
    for what in (workload.WEIGHTS, workload.GRADIENTS, workload.UPDATES):
        if what not in one or what not in two:
            continue
        allowed = _Allowed(one, two, what)
        for name, copies in one[what].items():
            first = np.array(two[what][name][0])
            shares = [allowed.share(name, np.array(copy), first)
                      for copy in (copies[1:] if of_copies else copies)]
            if shares:
                yield _Error(what, name, max(shares))


class _Allowed:
    """How far the values of one kind may be apart in two cases, which have the same parameters."""

    def __init__(self, one: Recorded, two: Recorded, what: str) -> None:
        self._what, self._one, self._two = what, one, two
        self._relative, self._floor = (math.hypot(one[key], two[key])
                                       for key in ("relative", "floor"))
        self._of_norm: float = (one["relative"]**2 + two["relative"]**2) / 2
        whole = math.sqrt(sum(copies[0][0]**2 for copies in two[workload.GRADIENTS].values()))
        self._per_element = whole / math.sqrt(sum(two["elements"].values()))

    def share(self, name: str, own: Numbers, theirs: Numbers) -> float:
        distance = float(np.sqrt(np.mean((own[1:] - theirs[1:])**2))) / SKETCH
        norms = abs(float(own[0] - theirs[0]))
        shares = [_quotient(distance, self._distance(name))]
        if self._what != workload.UPDATES:
            shares.append(_quotient(norms, self._norms(name)))
        return max(shares)

    def _distance(self, name: str) -> float:
        if self._what == workload.GRADIENTS:
            return self._gradient(name)
        weight = self._norm(workload.WEIGHTS, name)
        if self._what == workload.WEIGHTS:
            return _RECORDED * weight
        rate = float(self._two["rate"])
        if self._two["optimizer"] == "sgd":
            return rate * self._gradient(name) + 2 * _FP32 * weight
        own = self._norm(workload.GRADIENTS, name)
        signs = math.atan(self._gradient(name) / own) / math.pi if own else 0.5
        elements = self._two["elements"][name]
        return 2 * rate * math.sqrt(elements * signs) + 2 * (_FP32 + _RECORDED) * weight

    def _norms(self, name: str) -> float:
        if self._what == workload.WEIGHTS:
            return _RECORDED * self._norm(workload.WEIGHTS, name)
        elements = self._two["elements"][name]
        roundings = min(elements, self._two["hidden"])
        own, scale = self._norm(workload.GRADIENTS, name), self._least_norm(name)
        if own * scale == 0:
            return self._gradient(name)
        return min(self._gradient(name), self._of_norm * scale * scale / own
                   + self._gradient(name) / math.sqrt(roundings))

    def _gradient(self, name: str) -> float:
        return (self._relative * self._least_norm(name)
                + self._floor * math.sqrt(self._two["elements"][name]))

    def _least_norm(self, name: str) -> float:
        """Return the norm that errors are relative to: gradients may be rounding and no more."""
        elements = self._two["elements"]
        share = self._per_element * math.sqrt(elements[name])
        least = max(self._norm(workload.GRADIENTS, name), float(self._two["least"]) * share)
        weight = workload.weight_beside(name)
        if weight is not None and weight in self._two[workload.GRADIENTS]:
            return max(least, workload.bias_scale(
                self._norm(workload.GRADIENTS, weight), elements[weight], elements[name]))
        return least

    def _norm(self, what: str, name: str) -> float:
        """Return the lesser norm of both: a value that is too large allows itself nothing."""
        return float(min(self._one[what][name][0][0], self._two[what][name][0][0]))


def _quotient(error: float, allowed: float) -> float:
    if not math.isfinite(error):
        return math.inf
    return error / allowed if error else 0.0


def same_programs(items: Iterable[CaseResult]) -> Mapping[str, str]:
    groups = grouped(((program_of(workload.training_of(item.case)), item.case.backend,
                       item.case.device,
                       item.case.world_size, item.case.env, item.case.mode, item.case.batch),
                      item.case) for item in items)
    return {case.case_id: group[0].case_id for group in groups.values() for case in group[1:]}
