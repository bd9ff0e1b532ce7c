"""What the results of a sweep say of a goal: pure functions, each of which takes `Evidence`.

A judge that finds no case to look at says ``cannot tell``; one whose cases were all skipped says
``skipped`` with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import median
from typing import Any

from gpu.machine import Machine
from hpcbench.reduce.results import CaseResult, Results


@dataclass(frozen=True)
class Evidence:
    """The results of a step, the machine, and the FLOP/s that were measured by dtype."""

    results: Results
    machine: Machine
    peaks: Mapping[str, float]

    def cases(self, only: str = "*") -> list[CaseResult]:
        """Return the cases whose label matches a shell pattern."""
        return [item for item in self.results.cases if fnmatchcase(item.case.label, only)]


@dataclass(frozen=True)
class Judgement:
    """A verdict, and the figures or the reason."""

    verdict: str
    detail: str


def flop_rate(results: Results, item: CaseResult) -> float | None:
    """Return the FLOP/s of the busiest rank of a primitive; None where there is no such number."""
    flops = getattr(results.record_of(item), "flops", None)
    return getattr(flops, "busiest_rank_flops_per_s", None)


def _nothing(cases: Sequence[CaseResult]) -> Judgement | None:
    """Return the judgement where no case was run, else None."""
    if not cases:
        return Judgement("cannot tell", "the sweep has no such case")
    if all(item.status == "skipped" for item in cases):
        return Judgement("skipped", _reasons(cases))
    return None


def _reasons(cases: Sequence[CaseResult]) -> str:
    """Return why cases did not run, the most frequent reason first."""
    counts = Counter(item.reason for item in cases)
    return "; ".join(f"{count} x {reason}" for reason, count in counts.most_common(3))


def all_ok(evidence: Evidence, only: str = "*") -> Judgement:
    """Every case that the machine can run is ok; where results are checked they are right."""
    cases = evidence.cases(only)
    if nothing := _nothing(cases):
        return nothing
    skipped = [item for item in cases if item.status == "skipped"]
    bad = [item for item in cases if item.status not in ("ok", "skipped")]
    if bad:
        first = bad[0]
        return Judgement("missed", f"{len(bad)} of {len(cases)} cases: {first.case.label}: "
                                   f"{first.status}: {first.reason or f'{first.n_wrong} wrong'}")
    checked = sum(item.n_wrong is not None for item in cases)
    told = f"{len(cases) - len(skipped)} cases ok, {checked} of them checked"
    return Judgement("met", told + (f"; skipped: {_reasons(skipped)}" if skipped else ""))


def events(evidence: Evidence, slack_us: float = 5.0) -> Judgement:
    """Between two events lies less time than between two stamps of the host around them."""
    told = [(item, item.timing) for item in evidence.cases()
            if item.timing and item.timing.device_s is not None]
    if not told:
        return _nothing(evidence.cases()) or Judgement("missed", "no case has a time of events")
    beyond = [item.case.label for item, timing in told
              if timing.local_max_s is not None and timing.calls == 1
              and timing.device_s > timing.local_max_s + slack_us / 1e6]
    shares = [timing.device_s / timing.local_max_s for _, timing in told if timing.local_max_s]
    detail = (f"events over host: median {median(shares):.3f}, least {min(shares):.3f}, greatest "
              f"{max(shares):.3f} of {len(shares)} cases")
    return Judgement("missed" if beyond else "met",
                     f"{detail}; longer than the host's: {beyond[0]}" if beyond else detail)


def told(evidence: Evidence, what: str) -> Judgement:
    """At least one case has this time of `Timing`, which is positive wherever it is there."""
    values = [value for item in evidence.cases() if item.timing
              and (value := getattr(item.timing, what)) is not None]
    if not values:
        return _nothing(evidence.cases()) or Judgement("missed", f"no case has {what}")
    detail = (f"{what}: median {1e6 * median(values):.4g} us, {1e6 * min(values):.4g} to "
              f"{1e6 * max(values):.4g} us of {len(values)} cases")
    return Judgement("met" if min(values) > 0 else "missed", detail)


def choices(evidence: Evidence) -> Judgement:
    """The library's algorithm and protocol are known of every case that ran."""
    ran = [item for item in evidence.cases() if item.status == "ok"]
    if not ran:
        return _nothing(evidence.cases()) or Judgement("missed", "no case is ok")
    words = [" ".join((item.library or {}).get(key, "") for key in ("algorithm", "protocol"))
             for item in ran]
    untold = [item.case.label for item, word in zip(ran, words, strict=True) if not word.strip()]
    if untold:
        return Judgement("missed", f"not known of {len(untold)} of {len(ran)}: {untold[0]}")
    return Judgement("met", ", ".join(f"{count} x {word}" for word, count
                                      in Counter(words).most_common()))


def replays(evidence: Evidence) -> Judgement:
    """In the median a replay is enqueued in less time than the same call outside a graph."""
    enqueue_s: dict[str, dict[bool, float]] = {}
    for item in evidence.cases():
        if item.timing and item.timing.enqueue_s:
            label = item.case.label.replace(" cuda_graph", "")
            enqueue_s.setdefault(label, {})[item.case.cuda_graph] = item.timing.enqueue_s
    ratios = [both[True] / both[False] for both in enqueue_s.values() if len(both) == 2]
    if not ratios:
        return _nothing(evidence.cases()) or Judgement("cannot tell", "no case ran in both ways")
    detail = (f"replay over call: median {median(ratios):.3f}, {min(ratios):.3f} to "
              f"{max(ratios):.3f} of {len(ratios)} pairs")
    return Judgement("met" if median(ratios) < 1 else "missed", detail)


def peak(evidence: Evidence, share: float) -> Judgement:
    """A large product reaches this share of the declared peak in every dtype that has one."""
    declared = evidence.results.plan.config.get("hardware", {}).get("peak_flops") or {}
    rates: dict[str, float] = {}
    for item in evidence.cases():
        if rate := flop_rate(evidence.results, item):
            rates[item.case.workload.dtype] = max(rate, rates.get(item.case.workload.dtype, 0.0))
    if not rates:
        return _nothing(evidence.cases()) or Judgement("missed", "no product was measured")
    detail = ", ".join(f"{dtype} {rate / 1e12:.4g} TFLOP/s" + (
        f" ({rate / declared[dtype]:.1%} of declared)" if dtype in declared else "")
        for dtype, rate in rates.items())
    shares = [rate / declared[dtype] for dtype, rate in rates.items() if dtype in declared]
    if not shares:
        return Judgement("cannot tell", f"{detail}; no peak is declared for this GPU")
    return Judgement("met" if min(shares) >= share else "missed", detail)


def mfu(evidence: Evidence, least: float) -> Judgement:
    """The best MFU of each model, by the declared peak, and by the measured one beside it."""
    declared = evidence.results.plan.config.get("hardware", {}).get("peak_flops") or {}
    best: dict[str, float] = {}
    for item in evidence.cases():
        value = getattr(evidence.results.record_of(item), "mfu", None)
        if value is not None:
            name = f"{item.case.workload.model} {item.case.workload.dtype}"
            best[name] = max(value, best.get(name, 0.0))
    if not best:
        return _nothing(evidence.cases()) or Judgement(
            "cannot tell", "no step has an MFU: no peak is declared for this GPU")
    parts = []
    for name, value in best.items():
        dtype = name.rpartition(" ")[2]
        measured = evidence.peaks.get(dtype)
        beside = f", {value * declared[dtype] / measured:.1%} of measured" if measured else ""
        parts.append(f"{name} {value:.1%} of declared{beside}")
    return Judgement("met" if min(best.values()) >= least else "missed", "; ".join(parts))


def memory(evidence: Evidence, within: float) -> Judgement:
    """Predicted memory is within this share of the peak that the device's allocator tells."""
    shares = {}
    for item in evidence.cases():
        peaks = [int(rank["peak"]) for rank in (item.memory or {}).values() if "peak" in rank]
        if item.status == "ok" and peaks and item.case.memory_bytes:
            shares[item.case.label] = item.case.memory_bytes / max(peaks)
    if not shares:
        return _nothing(evidence.cases()) or Judgement("missed", "no case has a peak of memory")
    worst = max(shares, key=lambda label: abs(shares[label] - 1))
    detail = (f"predicted over measured: {min(shares.values()):.3f} to {max(shares.values()):.3f} "
              f"of {len(shares)} cases, worst {worst}")
    return Judgement("met" if abs(shares[worst] - 1) <= within else "missed", detail)


def largest_batch(evidence: Evidence) -> Judgement:
    """The largest batch that runs is the largest predicted to fit, or its neighbour in the sweep.

    What does not fit fails by itself, as out of memory.
    """
    cases = sorted(evidence.cases(), key=lambda item: item.case.workload.batch_size)
    if nothing := _nothing(cases):
        return nothing
    sizes = [item.case.workload.batch_size for item in cases]
    ran = [item.status == "ok" for item in cases]
    fits = [item.case.memory_bytes <= evidence.machine.memory_bytes[0] for item in cases]
    other = [item for item in cases if item.status != "ok" and "out of memory" not in item.reason]
    if other:
        return Judgement("missed", f"batch {other[0].case.workload.batch_size}: {other[0].reason}")
    if all(ran):
        return Judgement("cannot tell", f"all ran, the largest of {sizes[-1]}")
    largest, predicted = sum(ran), sum(fits)
    detail = (f"largest that ran: {sizes[largest - 1] if largest else 'none'}; predicted to fit: "
              f"{sizes[predicted - 1] if predicted else 'none'}; the next ran out of memory")
    return Judgement("met" if largest and abs(largest - predicted) <= 1 else "missed", detail)


def survived(
    evidence: Evidence, fault: str, statuses: Sequence[str], reason: str = "",
) -> Judgement:
    """A faulty case ends as it must, by this reason; the case that runs after it is ok."""
    cases = list(evidence.results.cases)
    hit = [number for number, item in enumerate(cases) if fnmatchcase(item.case.label, fault)]
    if nothing := _nothing([cases[number] for number in hit]):
        return nothing
    for number in hit:
        item, after = cases[number], cases[number + 1:number + 2]
        if item.status not in statuses or reason.lower() not in item.reason.lower():
            return Judgement("missed", f"{item.case.label}: {item.status}: {item.reason}")
        if not after or after[0].status != "ok":
            words = f"{after[0].status}: {after[0].reason}" if after else "there is none"
            return Judgement("missed", f"the case after {item.case.label}: {words}")
    item = cases[hit[0]]
    return Judgement("met", f"{item.status}: {item.reason}; the next case is ok")


def refused(evidence: Evidence, words: str) -> Judgement:
    """No case runs; each is a skip whose reason has these words."""
    cases = evidence.cases()
    others = [item for item in cases if item.status != "skipped" or words not in item.reason]
    if others or not cases:
        first = others[0] if others else None
        return Judgement("missed", f"{first.case.label}: {first.status}: {first.reason}"
                         if first else "the sweep has no case")
    return Judgement("met", _reasons(cases))


def own_device(evidence: Evidence, which: str) -> Judgement:
    """Rank 0 used the device that was named first: the ``last`` GPU, or the first ``mig`` device.
    """
    right = all_ok(evidence)
    if right.verdict != "met":
        return right
    named = evidence.machine.mig[0] if which == "mig" else evidence.machine.uuids[-1]
    used = str((evidence.results.run.environment.get("gpu") or {}).get("uuid"))
    same = _bare(used) == _bare(named)
    return Judgement("met" if same else "missed", f"rank 0 used {used}, asked for {named}")


def _bare(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-")


JUDGES: Mapping[str, Callable[..., Judgement]] = {
    judge.__name__: judge for judge in (
        all_ok, events, told, choices, replays, peak, mfu, memory, largest_batch, survived, refused,
        own_device)}


def known(options: Mapping[str, Any], judge: str) -> bool:
    """Tell whether a judge of that name takes these options."""
    names = JUDGES[judge].__code__.co_varnames[1:JUDGES[judge].__code__.co_argcount]
    return set(options) <= set(names)
