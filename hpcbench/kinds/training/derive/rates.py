"""Rates and utilisations of a step, how trainings scale, what was counted, and what binds a step.

Rates are derived once, from one step time, and never averaged. Tokens and samples count once,
however many ranks see them.

Trainings that differ in nothing but their ranks are compared with that on the fewest: a step with
more replicas has more samples (weak scaling: Gustafson, Comm. ACM 31, 1988), ranks of one replica
share its samples (strong scaling). Efficiency: samples/s of n ranks / (n / m x samples/s of m).

The least memory traffic: forward reads parameters and writes activations, backward reads both and
writes gradients, in each part of an accumulation; the optimizer reads all it has and writes
parameters and state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hpcbench.kinds.training.plan.experts import is_routed, load_of
from hpcbench.kinds.training.plan.memory import moments
from hpcbench.kinds.training.plan.models import EXECUTED
from hpcbench.kinds.training.plan.predict import (
    Demands,
    busiest_calls,
    is_predicted,
    predict,
    predict_stage,
    tied_bytes,
)
from hpcbench.kinds.training.plan.spec import alone_by, layout_of, trained_part
from hpcbench.kinds.training.plan.step import busiest_stages, stages_of
from hpcbench.kinds.training.plan.workload import CHUNKED, Training, training_of
from hpcbench.operations.collectives import collective_spec
from hpcbench.operations.loads import max_over_mean
from hpcbench.plan.case import Case
from hpcbench.reduce.kind_facts import SAMPLES, CallWork, RepeatedCall, StepDemand
from hpcbench.reduce.metric import Records, Values
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import Demand, Roofline, ceilings_of, roofline
from hpcbench.units import HOUR_S, grouped

LAID_OUT = ("strategy", "options", "dp", "tp", "pp", "cp", "flops", "calls", "modules", "loss",
            "checkpoint_folder")
"""Fields of a training that depend on its layout on ranks or its run; some strategies have but one
loss."""


def work(item: CaseResult, values: Values) -> CallWork | None:
    of = training_of(item.case)
    if not of.trains:
        return None
    left = {*LAID_OUT, "batch_size"}
    unusual = [f"{name}={value}" for name, value in of.unusual()]
    loss = [word for word in unusual if word.startswith("loss=")]
    step = (of.dtype, of.optimizer, *(word for word in unusual if word not in loss), *(
            [f"accumulation={of.accumulation}"] * (of.accumulation != 1)))
    return CallWork(
        task=(trained_part(of), *((name, value) for name, value in asdict(of).items()
                                  if name not in left)),
        title=" ".join((of.title, *step)),
        way=" ".join((of.strategy, *loss, *(f"{name}={value}" for name, value in of.options))),
        amount=of.global_batch, unit=SAMPLES, tokens=of.tokens, alone=alone_by(of),
        communication=values.get("exposed_share_passes"))


def demand(item: CaseResult) -> StepDemand | None:
    """Return the FLOPs and calls of a step of the busiest rank; None where plans predict none, as
    of what is skipped."""
    of = training_of(item.case)
    if item.case.skip or not is_predicted(of):
        return None
    if is_routed(of):
        return StepDemand(0.0, (), "its router decides in each step how many tokens travel: "
                          "predict it with load=balanced")
    flops, grouped_calls = busiest_calls(of)
    return StepDemand(flops, tuple(RepeatedCall(
        each.calls.collective, each.ranks, each.stride, each.calls.count,
        each.calls.size_bytes / each.calls.count) for each in grouped_calls))


_SHOWN_DEFINITION = "megatron"
"""Shown of MFU where a plan has it: it counts the least that a causal model cannot do without."""
Key = tuple[object, ...]
Timed = tuple[Case, float]  # a case, and the samples that it trains in a second


def rates(work: Training, step_s: float) -> tuple[float, float | None] | None:
    """Return samples and tokens a second of all ranks together; None without a time."""
    if not step_s > 0:
        return None
    return work.global_batch / step_s, work.tokens and work.tokens / step_s


def shown_definition(work: Training) -> str | None:
    names = [name for name, _ in work.flops]
    return _SHOWN_DEFINITION if _SHOWN_DEFINITION in names else next(iter(names), None)


def mfu(
    work: Training, definition: str, step_s: float, ranks: int, peaks: Mapping[str, float],
) -> float | None:
    """Return the model FLOPs of a step / (t x ranks x peak of one device for the dtype).

    Chowdhery et al., PaLM (arXiv 2204.02311), section 4.1 and appendix B: what is computed twice
    counts once. ``peaks``: declared ``hardware.peak_flops``. Raises KeyError for an unknown
    definition."""
    return hfu(work, dict(work.flops)[definition], step_s, ranks, peaks)


def hfu(
    work: Training, hardware_flops: int, step_s: float, ranks: int, peaks: Mapping[str, float],
) -> float | None:
    """Return the FLOPs that devices execute in a step / (t x ranks x peak of one device).

    ``hardware_flops`` hold what checkpointing computes again. Korthikanti et al. (arXiv
    2205.05198), section 6.3. None without a peak of the dtype, or a time."""
    if work.peak_type not in peaks or not step_s > 0:
        return None
    return hardware_flops / (step_s * ranks * peaks[work.peak_type])


def step_cost(case: Case, step_s: float, hardware: Mapping[str, Any]) -> float | None:
    """Return t x ranks x ``price_per_device_hour``; None without a price, or of another device."""
    price = hardware.get("price_per_device_hour")
    if price is None or hardware.get("device_type") not in (None, case.device):
        return None
    return step_s / HOUR_S * case.world_size * float(price)


WEAK, STRONG = "weak", "strong"
"""Each rank has as many samples as in the base; or all together have."""


def scaling(items: Sequence[CaseResult]) -> Records:
    """Return how each training scales, by case id; those without a base are left out.

    The base is the same strategy and options on the fewest ranks; if those are several, ``single``.
    """
    measured = ((item.case, rates(training_of(item.case), item.statistics.median_s))
                for item in items if training_of(item.case).trains and item.statistics)
    groups = grouped((_same(case), (case, computed[0])) for case, computed in measured if computed)
    return {case.case_id: values for group in groups.values() for case, values in _of_group(group)}


def _same(case: Case) -> Key:
    work = training_of(case)
    return (case.backend, case.device, case.env, case.mode, trained_part(work),
            *((name, value) for name, value in asdict(work).items() if name not in LAID_OUT))


def _of_group(group: Sequence[Timed]) -> Iterator[tuple[Case, Values]]:
    alone = [timed for timed in group if alone_by(training_of(timed[0]))]
    layouts = grouped(((training_of(timed[0]).loss, training_of(timed[0]).strategy,
                        training_of(timed[0]).options), timed) for timed in group)
    for (loss, *_), members in layouts.items():
        least = min(members, key=lambda timed: timed[0].world_size)
        nearest = [one for one in alone if training_of(one[0]).loss == loss] or alone
        base, base_rate = nearest[0] if nearest and least[0].world_size > 1 else least
        for case, rate in members:
            samples, base_samples = (training_of(one).global_batch for one in (case, base))
            is_weak = samples * base.world_size == base_samples * case.world_size
            kind = WEAK if is_weak else STRONG if samples == base_samples else None
            if kind and case.world_size > base.world_size:
                yield case, {
                    "scaling": kind, "scaling_base_case": base.case_id,
                    "scaling_efficiency": rate * base.world_size / (case.world_size * base_rate),
                    "scaling_base_ranks": base.world_size,
                    "scaling_base_samples_per_second": base_rate}


COUNTED = "counted"  # the key of a rank's detail for what it counted


def counted(item: CaseResult) -> Values:
    """Return the values of a step that was counted, each the most of any rank, beside those that
    were predicted, and in ``not_counted`` why some are missing. ``flops`` are executed ones,
    ``wire_bytes`` what links carry, by formula; ``scores_again_flops``, repeated by a fused
    attention in backward, are not in ``flops``."""
    by_rank = _by_rank(item.detail)
    if not by_rank:
        return {}
    memory = (item.memory or {}).values()
    calls = [one["calls"] for one in by_rank.values() if "calls" in one]
    return {
        "step_calls": max((sum(count for count, _, _ in each.values()) for each in calls),
                          default=None),
        "wire_bytes": max((_carried(item.case, each) for each in calls), default=None),
        "flops": _most(by_rank, "flops"), **_predicted(item.case),
        "scores_again_flops": _most(by_rank, "scores_again_flops"),
        "activations_of": ", ".join(dict.fromkeys(
            str(one["activations_of"]) for one in memory if "activations_of" in one)) or None,
        "not_counted": {name: reason for one in by_rank.values()
                        for name, reason in one.get("missing", {}).items()}}


def counted_wire_bytes(item: CaseResult) -> float | None:
    """Return the sum over all ranks; None if one did not count."""
    by_rank = [one["calls"] for one in _by_rank(item.detail).values() if "calls" in one]
    if len(by_rank) < item.case.world_size:
        return None
    return float(sum(_carried(item.case, calls) for calls in by_rank))


def _carried(case: Case, calls: Mapping[str, tuple[int, int, int]]) -> int:
    """Return the bytes on the links in a rank's calls: number, size, and size times busbw factor.
    """
    return sum(wire * collective_spec(name).carried_on(case.library)
               for name, (_, _, wire) in calls.items())


def differences(case: Case, detail: Mapping[str, Any]) -> Iterator[str]:
    """Yield calls whose number or bytes differ from the prediction.

    Compared are the first ranks of each group that divides tensors: others may have smaller parts.
    """
    work = training_of(case)
    if not is_predicted(work) or not work.trains:
        return
    stages, shards = stages_of(work), layout_of(work).shards
    for rank, of_rank in _by_rank(detail).items():
        if "calls" not in of_rank or rank % work.tp:
            continue
        stage = stages[rank // work.tp % len(stages)]
        shard = rank // (work.tp * work.pp) % shards
        lacking = tied_bytes(work, stage) - tied_bytes(work, stage, shard)
        expected = {part.collective: (
            part.count, part.size_bytes - lacking * (part.collective == "send_recv"))
            for part in predict_stage(work, stage).calls}
        counted = {name: (count, size) for name, (count, size, _) in of_rank["calls"].items()}
        if is_routed(work):  # whose bytes nobody knows before
            expected, counted = ({name: (count, 0) for name, (count, _) in one.items()}
                                 for one in (expected, counted))
        for name in sorted({*expected, *counted}):
            if counted.get(name) != expected.get(name):
                yield (f"rank {rank} called {_text(name, counted)} in a step, predicted was "
                       f"{_text(name, expected)}")


def _text(name: str, calls: Mapping[str, tuple[int, int]]) -> str:
    count, size = calls.get(name, (0, 0))
    return f"{count} {name} of {size} B" if count else f"no {name}"


def _by_rank(detail: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    return {int(rank): left[COUNTED] for rank, left in detail.items() if COUNTED in left}


def _most(by_rank: Mapping[int, Mapping[str, Any]], name: str) -> int | None:
    return max((one[name] for one in by_rank.values() if name in one), default=None)


def _predicted(case: Case) -> Values:
    work = training_of(case)
    if not is_predicted(work):
        return {}
    needs = predict(work)
    if is_routed(work):
        return {"step_calls_predicted": needs.collectives}
    return {**_load(work), "step_calls_predicted": needs.collectives,
            "wire_bytes_predicted": needs.carried_on(case.library),
            "flops_predicted": needs.hardware_flops,
            # not of the fullest moment, which may be the update, after the last activation is gone
            "activations_bytes_predicted": max(
                moment.activations for stage in busiest_stages(work)
                for moment in moments(work, stage))}


def _load(work: Training) -> Values:
    """Return how unevenly experts and the ranks that have them are loaded."""
    if layout_of(work).experts is None:
        return {}
    shares, tokens, dropped = load_of(work)
    return {"expert_tokens": max(tokens), "expert_max_over_mean": max_over_mean(tokens),
            "received_max_over_mean": max_over_mean([one.received for one in shares]),
            "dropped_share": dropped}


FORWARD, BACKWARD, BOTH, EXCHANGE, OPTIMIZER = (
    "forward", "backward", "forward_backward", "exchange", "optimizer")
Moved = tuple[int, int, int]  # the least bytes of memory of forward, backward and the optimizer


def rooflines(
    item: CaseResult, hardware: Mapping[str, Any], phase_s: Mapping[str, float],
    memory: Mapping[str, int],
) -> tuple[Roofline, ...]:
    """Return the rooflines of the step, then of phases (``phase_s``); none without a ceiling."""
    work = training_of(item.case)
    if item.statistics is None or not work.trains or not is_predicted(work) or is_routed(work):
        return ()
    ceilings, needs = ceilings_of(item, work.peak_type, hardware), predict(work)
    moved = _moved(work, needs, memory)
    exchanged = (needs.carried_on(item.case.library), needs.collectives)
    whole = Demand(needs.hardware_flops, sum(moved) if moved else None, *exchanged)
    parts = [("step", item.statistics.median_s, whole)]
    meets_once = len(needs.of_ranks) == 1 and {  # all-reduces only, after backward has begun
        call.collective for call in needs.of_ranks[0].calls} <= {"all_reduce"}
    if phase_s and meets_once and work.replica_ranks == 1:
        parts += _phases(work, needs.hardware_flops, exchanged, moved, phase_s)
    bounds = (roofline(demand, time_s, ceilings, name) for name, time_s, demand in parts)
    return tuple(one for one in bounds if one is not None)


def _phases(
    work: Training, flops: int, exchanged: tuple[int, int], moved: Moved | None,
    phase_s: Mapping[str, float],
) -> Iterator[tuple[str, float, Demand]]:
    """Yield name, time and demand of each part; gradients travel from backward on."""
    forward = _forward_flops(work)
    of_forward, of_backward, of_optimizer = moved or (None, None, None)
    names = [name for name in (FORWARD, BACKWARD, BOTH, EXCHANGE) if name in phase_s]
    if forward is not None and FORWARD in names and BACKWARD in names:
        yield FORWARD, phase_s[FORWARD], Demand(forward, of_forward)
        names.remove(FORWARD)
        passes = Demand(flops - forward, of_backward, *exchanged)
    else:
        passes = Demand(flops, moved and sum(moved[:2]), *exchanged)
    if names:
        yield " + ".join(names), sum(phase_s[name] for name in names), passes
    if OPTIMIZER in phase_s and of_optimizer:
        yield OPTIMIZER, phase_s[OPTIMIZER], Demand(memory_bytes=of_optimizer)


def _forward_flops(work: Training) -> float | None:
    """Return a rank's FLOPs of forward: a third, where all that is multiplied has gradients."""
    counted = dict(work.flops).get(EXECUTED)
    if counted is None or work.of_images or work.adapters or work.loss == CHUNKED:
        return None
    return counted / (3 * work.dp)


def _moved(work: Training, needs: Demands, memory: Mapping[str, int]) -> Moved | None:
    """Return the least bytes of each phase, from the memory of the rank with most.

    Activations that were not counted are predicted. Those of a pipeline are of several stages."""
    names = ("parameters", "gradients", "optimizer_state")
    if work.pp > 1 or any(name not in memory for name in names):
        return None
    weights, gradients, state = (memory[name] for name in names)
    kept, parts = memory.get("activations", needs.memory.activations), work.accumulation
    return (parts * (weights + kept), parts * (weights + kept + gradients),
            2 * weights + gradients + 2 * state)
