"""What a number of training samples takes on each choice of ranks and strategy: time, money, kWh.

time = samples / (samples in a second); device-hours = time x nodes x devices a node; cost =
device-hours x price of a device-hour. A rank has a device of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcbench.analysis.answer import Asked
from hpcbench.analysis.compare import FASTER, SAME, SLOWER, CaseComparison
from hpcbench.analysis.scaling_series import Band
from hpcbench.analysis.worked import Worked, compared, scaled, short_ways
from hpcbench.units import plural

HOUR_S, J_PER_KWH = 3600, 3.6e6


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to train the samples.

    Attributes:
        time_s, device_hours, cost, kwh: for all samples; the last two None where unknown.
        price: of a device-hour.
        energy_of: whose counters the energy is of; ``power_w`` their mean power during the case.
        setup_s: to open the group and for the first call, as measured; None if unknown.
        tokens_a_sample: None of images.
        on_front: whether no other choice is both faster and cheaper.
        shares_cores: whether its ranks are known to share cores.
        time_beside, cost_beside: over those of the default; None of the default itself.
    """

    case_id: str
    label: str
    ranks: int
    nodes: int
    samples_per_s: float
    time_s: float
    device_hours: float
    price: float | None = None
    cost: float | None = None
    kwh: float | None = None
    power_w: float | None = None
    energy_of: str = ""
    setup_s: float | None = None
    tokens_a_sample: float | None = None
    on_front: bool = False
    shares_cores: bool = False
    time_beside: Band | None = None
    cost_beside: Band | None = None

    @property
    def spent(self) -> float:
        """Return the cost, or device-hours without a price."""
        return self.device_hours if self.cost is None else self.cost


@dataclass(frozen=True, slots=True)
class Best:
    """The best choice by one measure: those that are not clearly worse, the best first.

    ``alike`` tells that these are the same within what matters, not merely hard to tell apart.
    """

    labels: tuple[str, ...]
    alike: bool
    in_launch: bool


@dataclass(frozen=True, slots=True)
class Step:
    """From one number of ranks to the next: what it saves, and what that costs.

    Attributes:
        time: over that of fewer ranks, with its interval; ``verdict`` is that of
            `analysis.compare`.
        from_samples: from so many samples on it is faster, set-up included; None if it is not, or
            set-up is not known.
        hour_saved: what each hour that it saves costs, in the unit of the task; None if none is.
    """

    first: str
    second: str
    more_nodes: int
    time: Band
    verdict: str
    from_samples: int | None
    hour_saved: float | None


@dataclass(frozen=True, slots=True)
class Task:
    """All choices of one training; the default is the first planned one.

    ``unit`` is that of costs: a currency, or device-hours.
    """

    title: str
    unit: str
    samples: int
    choices: tuple[Choice, ...]
    default: str
    fastest: Best
    cheapest: Best
    steps: tuple[Step, ...]


def task_of(cases: Sequence[Worked], asked: Asked) -> Task:
    """Return the choices of one task, of which there is at least one."""
    choices = [_choice(case, asked, words) for case, words in zip(
        cases, _labels(cases), strict=True)]
    priced = all(one.cost for one in choices)
    if not priced:  # one unit for all
        choices = [replace(one, price=None, cost=None) for one in choices]

    def spent(case: Worked) -> float:
        """Return what a second of a sample costs."""
        price = _price(case, asked) if priced else None
        return case.ranks * (price or 1.0) / case.work.amount

    return Task(
        cases[0].title, _unit(cases, asked) if priced else "device-hours", asked.samples,
        tuple(_on_front(_beside_default(cases, choices, spent))), choices[0].label,
        _best(cases, choices, _a_sample), _best(cases, choices, spent),
        tuple(_steps(cases, choices)))


def _labels(cases: Sequence[Worked]) -> list[str]:
    words = short_ways(cases)
    labels = [f"{words[case.work.way]} on {plural(case.ranks, 'rank')}, "
              f"{case.work.amount:g} samples a step" for case in cases]
    return [f"{label} ({case.case.case_id})" if labels.count(label) > 1 else label
            for label, case in zip(labels, cases, strict=True)]


def _hardware(case: Worked) -> Mapping[str, Any]:
    found: Mapping[str, Any] = case.run.results.plan.config.get("hardware") or {}
    return found


def _price(case: Worked, asked: Asked) -> float | None:
    """Return what was asked with, else the price that the sweep file gives of this device."""
    hardware = _hardware(case)
    if asked.price is not None:
        return asked.price
    if hardware.get("device_type") not in (None, case.device):
        return None
    price = hardware.get("price_per_device_hour")
    return None if price is None else float(price)


def _unit(cases: Sequence[Worked], asked: Asked) -> str:
    known = {_hardware(case).get("currency") for case in cases} - {None}
    return str(known.pop()) if len(known) == 1 else "currency units"


def _choice(case: Worked, asked: Asked, label: str) -> Choice:
    rate = case.work.amount / case.time_s
    time_s, price, usage = asked.samples / rate, _price(case, asked), case.item.usage
    hours = time_s * case.ranks / HOUR_S
    power_w = usage.mean_power_w if usage is not None else None
    timing = case.item.timing
    setup = [timing.communicator_s, timing.first_call_s] if timing else []
    return Choice(
        case.case.case_id, label, case.ranks, case.nodes, rate, time_s, hours, price,
        None if price is None else hours * price,
        None if power_w is None else power_w * time_s / J_PER_KWH, power_w,
        usage.energy_of if usage is not None else "",
        sum(part for part in setup if part is not None) if any(setup) else None,
        case.work.tokens / case.work.amount if case.work.tokens else None,
        shares_cores=case.shares_cores)


def _a_sample(case: Worked) -> float:
    return 1 / case.work.amount


def _ratios(
    first: Worked, others: Sequence[Worked], measure: Callable[[Worked], float],
) -> list[CaseComparison]:
    base = scaled(first, measure(first))
    return compared([(base, scaled(other, measure(other))) for other in others])


def _beside_default(
    cases: Sequence[Worked], choices: Sequence[Choice], spent: Callable[[Worked], float],
) -> list[Choice]:
    """Return the choices with their times and costs over those of the first."""
    first, *others = cases
    times, costs = (_ratios(first, others, measure) for measure in (_a_sample, spent))
    return [choices[0], *(replace(choice, time_beside=_band(time), cost_beside=_band(cost))
                          for choice, time, cost in zip(choices[1:], times, costs, strict=True))]


def _band(found: CaseComparison) -> Band:
    return Band(found.ratio, found.low, found.high)


def _on_front(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices; on the front are those that no other one beats in time and cost."""
    def beaten(one: Choice) -> bool:
        return any(other.time_s <= one.time_s and other.spent <= one.spent
                   and (other.time_s, other.spent) != (one.time_s, one.spent)
                   for other in choices)

    return [replace(one, on_front=not beaten(one)) for one in choices]


def _best(
    cases: Sequence[Worked], choices: Sequence[Choice], measure: Callable[[Worked], float],
) -> Best:
    """Return the choice with the least time or cost of a sample, and what may be as good."""
    order = sorted(range(len(cases)), key=lambda at: (
        cases[at].time_s * measure(cases[at]), choices[at].time_s))
    best, *others = order
    found = _ratios(cases[best], [cases[at] for at in others], measure)
    near = [(at, one) for at, one in zip(others, found, strict=True) if one.verdict != SLOWER]
    return Best(
        (choices[best].label, *(choices[at].label for at, _ in near)),
        all(one.verdict == SAME for _, one in near) and bool(near),
        any(one.in_launch for one in found))


def _steps(cases: Sequence[Worked], choices: Sequence[Choice]) -> list[Step]:
    """Return what each next number of ranks brings, of the fastest choice on each."""
    fastest: dict[int, int] = {}
    for at, one in enumerate(choices):
        known = fastest.get(one.ranks)
        if known is None or one.time_s < choices[known].time_s:
            fastest[one.ranks] = at
    order = [fastest[ranks] for ranks in sorted(fastest)]
    pairs = [*zip(order, order[1:], strict=False)]
    found = compared([(scaled(cases[few], _a_sample(cases[few])),
                       scaled(cases[many], _a_sample(cases[many]))) for few, many in pairs])
    return [_step(choices[few], choices[many], one)
            for (few, many), one in zip(pairs, found, strict=True)]


def _step(few: Choice, many: Choice, found: CaseComparison) -> Step:
    from_samples = hour_saved = None
    if found.verdict == FASTER:
        hour_saved = (many.spent - few.spent) / ((few.time_s - many.time_s) / HOUR_S)
        if few.setup_s is not None and many.setup_s is not None:
            a_sample = 1 / few.samples_per_s - 1 / many.samples_per_s
            from_samples = max(int((many.setup_s - few.setup_s) / a_sample) + 1, 1)
    return Step(few.label, many.label, many.nodes - few.nodes, _band(found), found.verdict,
                from_samples, hour_saved)
