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
from hpcbench.trace.schema import bare_uuid

NO_PEAK = "no peak is declared for this GPU"


@dataclass(frozen=True)
class Evidence:
    """The results of a step, and the machine."""

    results: Results
    machine: Machine

    @property
    def declared(self) -> Mapping[str, float]:
        """Return the declared FLOP/s of a device by dtype."""
        return self.results.plan.config.get("hardware", {}).get("peak_flops") or {}

    def value(self, item: CaseResult, name: str) -> Any:
        """Return what was derived of a case, None where it has none."""
        return (self.results.record_of(item) or {}).get(name)

    def cases(self, only: str = "*") -> list[CaseResult]:
        """Return the cases whose label matches one of the shell patterns, which | divides."""
        return [item for item in self.results.cases if matches(item.case.label, only)]


def matches(label: str, only: str) -> bool:
    """Tell whether a label matches one of the shell patterns, which | divides."""
    return any(fnmatchcase(label, pattern) for pattern in only.split("|"))


@dataclass(frozen=True)
class Judgement:
    """A verdict, and the figures or the reason."""

    verdict: str
    detail: str


def _bad(cases: Sequence[CaseResult]) -> list[CaseResult]:
    """Return the cases that neither ended well nor were skipped."""
    return [item for item in cases if item.status not in ("ok", "skipped")]


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
    bad = _bad(cases)
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
    rates, declared = _product_rates(evidence), evidence.declared
    if nothing := _nothing(evidence.cases()):
        return nothing
    shares = {dtype: rate / declared[_peak_of(dtype)] for dtype, rate in rates.items()
              if _peak_of(dtype) in declared}
    detail = ", ".join(f"{dtype} {rate / 1e12:.4g} TFLOP/s" + (
        f" ({shares[dtype]:.1%} of declared)" if dtype in shares else "")
        for dtype, rate in rates.items()) or "no product was measured"
    if not declared:
        return Judgement("cannot tell", f"{detail}; {NO_PEAK}")
    for item in _bad(evidence.cases()):
        if _peak_of(item.case.workload.dtype) in declared:
            return Judgement("missed", f"{item.case.label}: {item.status}: {item.reason}")
    if not shares:
        return Judgement("missed" if not rates else "cannot tell", f"{detail}; {NO_PEAK}")
    return Judgement("met" if min(shares.values()) >= share else "missed", detail)


def faster(evidence: Evidence, dtype: str, than: str) -> Judgement:
    """Products of a dtype are right, and faster than those of another, where torch has them."""
    mine = [item for item in evidence.cases() if item.case.workload.dtype == dtype]
    if nothing := _nothing(mine):
        return nothing
    bad = _bad(mine)
    if bad:
        lacks = _peak_of(dtype) not in evidence.declared and all(
            "has no product of" in item.reason for item in bad)
        return Judgement("skipped" if lacks else "missed", f"{bad[0].status}: {bad[0].reason}")
    rates = _product_rates(evidence)
    if dtype not in rates or than not in rates:
        return Judgement("cannot tell", f"no rate of {dtype}, or none of {than}")
    ratio = rates[dtype] / rates[than]
    return Judgement("met" if ratio > 1 else "missed", f"{ratio:.2f} times as fast as {than}")


def _product_rates(evidence: Evidence) -> dict[str, float]:
    """Return the best FLOP/s of a rank by dtype, of products of kind hardware."""
    rates: dict[str, float] = {}
    for item in evidence.cases():
        rate = evidence.value(item, "rank_flops_per_s") if (
            item.status == "ok" and item.case.kind == "hardware") else None
        if rate:
            dtype = item.case.workload.dtype
            rates[dtype] = max(rate, rates.get(dtype, 0.0))
    return rates


def _peak_of(dtype: str) -> str:
    """Return the name under which a dtype's peak is declared: both formats of fp8 have one."""
    return "fp8" if dtype.startswith("fp8") else dtype


def mfu(evidence: Evidence, least: float, only: str = "*") -> Judgement:
    """The best MFU of each model, by the declared peak, and by the measured one beside it."""
    best = _best_by_model(evidence, only, "mfu")
    of_measured = _best_by_model(evidence, only, "mfu_of_measured")
    parts = [f"{name} {value:.1%} of declared" for name, value in best.items()]
    parts += [f"{name} {value:.1%} of measured" for name, value in of_measured.items()]
    if not best:
        cases = evidence.cases(only)
        if nothing := _nothing(cases):
            return nothing
        if evidence.declared and (bad := _bad(cases)):
            return Judgement("missed", f"{bad[0].case.label}: {bad[0].status}: {bad[0].reason}")
        return Judgement("cannot tell", "; ".join([*parts, NO_PEAK]))
    return Judgement("met" if min(best.values()) >= least else "missed", "; ".join(parts))


def _best_by_model(evidence: Evidence, only: str, figure: str) -> dict[str, float]:
    """Return the best of a figure by model and dtype, of cases that have one."""
    best: dict[str, float] = {}
    for item in evidence.cases(only):
        if (value := evidence.value(item, figure)) is not None:
            name = f"{item.case.workload.model} {item.case.workload.dtype}"
            best[name] = max(value, best.get(name, 0.0))
    return best


def gpu_read(evidence: Evidence) -> Judgement:
    """Power and clocks of the GPUs were read while cases ran."""
    used = [item.usage for item in evidence.cases() if item.usage]
    watts = [usage.mean_power_w for usage in used
             if usage.mean_power_w is not None and "gpu" in usage.energy_of]
    clocks = [(usage.clock_low_mhz, usage.clock_high_mhz) for usage in used
              if usage.clock_low_mhz and usage.clock_high_mhz and usage.clock_of == "gpu"]
    if not watts or not clocks:
        lacking = " and ".join(what for what, told in (("power", watts), ("clock", clocks))
                               if not told)
        return _nothing(evidence.cases()) or Judgement("missed", f"no {lacking} of a GPU was read")
    slowed = sorted({word for usage in used for word in usage.throttled_by})
    return Judgement("met", (
        f"mean power of a case {min(watts):.4g} to {max(watts):.4g} W, clocks "
        f"{min(low for low, _ in clocks):g} to {max(high for _, high in clocks):g} MHz"
        + (f", lowered by {', '.join(slowed)}" if slowed else "")))


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


def largest_batch(evidence: Evidence, within: float) -> Judgement:
    """The largest batch that fits is within this share of the one that is predicted to."""
    cases = evidence.cases()
    searched = next((item for item in cases if item.status == "ok"
                     and evidence.value(item, "largest_batch")), None)
    if searched is None:
        return _nothing(cases) or Judgement("missed", f"{cases[0].status}: {cases[0].reason}")
    largest, predicted, deviation, too_large, ended, tries = (evidence.value(searched, name) for (
        name) in ("largest_batch", "predicted_largest_batch", "batch_deviation", "too_large_batch",
                  "too_large_ended", "tries"))
    detail = (f"largest that fits: {largest}, predicted {predicted}; {too_large} ended as {ended}, "
              f"{tries} tries")
    if deviation is None or too_large is None:
        return Judgement("cannot tell", detail)
    return Judgement("met" if abs(deviation) <= within else "missed", detail)


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
    same = bare_uuid(used) == bare_uuid(named)
    return Judgement("met" if same else "missed", f"rank 0 used {used}, asked for {named}")


JUDGES: Mapping[str, Callable[..., Judgement]] = {
    judge.__name__: judge for judge in (
        all_ok, events, told, choices, replays, peak, faster, mfu, gpu_read, memory, largest_batch,
        survived, refused, own_device)}


def known(options: Mapping[str, Any], judge: str) -> bool:
    """Tell whether a judge of that name takes these options."""
    names = JUDGES[judge].__code__.co_varnames[1:JUDGES[judge].__code__.co_argcount]
    return set(options) <= set(names)
