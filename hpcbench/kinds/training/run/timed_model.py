"""Parity of a large model itself, in a short step: what it takes, and why it may be too much."""

from __future__ import annotations

import resource
from dataclasses import replace

import psutil
import torch
import torch.distributed as dist

from hpcbench.backends.devices import free_bytes
from hpcbench.kinds.training.plan.build_workload import counted
from hpcbench.kinds.training.plan.registry import strategy
from hpcbench.kinds.training.plan.shares import is_dynamic
from hpcbench.kinds.training.plan.untimed import MOST_S, SHORT_TOKENS, comparison_s
from hpcbench.kinds.training.plan.validity import why_not
from hpcbench.kinds.training.plan.workload import SYNTHETIC, Training
from hpcbench.measure.allocation import granted_cores
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.operations.place import Place

BYTES = 96
"""Of a parameter, on each rank. In fp64 the reference has weight and gradient, a copy of both, and
for the step of the optimizer those and two states; the strategy has up to 32 in fp32."""


def short_step(spec: Training) -> Training:
    """Return the same model and layout with a step of few tokens and of as few samples as it takes.

    It is not compiled: the small model is. Of learnt positions there are fewer.
    """
    short = counted(replace(
        spec, data=SYNTHETIC, changed=True, compile=False,
        seq_length=min(spec.seq_length, spec.tp * -(-SHORT_TOKENS // spec.tp))))
    known = strategy(spec.strategy)
    if known is None or is_dynamic(spec):
        return short
    for size in range(spec.accumulation, spec.batch_size, spec.accumulation):
        fewer = replace(short, batch_size=size)
        if spec.batch_size % size == 0 and why_not(fewer, known) is None:
            return fewer
    return short


def too_much(short: Training, place: Place) -> str | None:
    """Return why the ranks cannot compare a model itself, or None. All ranks call it, and agree."""
    if short.of_images:
        return "rounding decides which values its ReLUs cut"
    seconds = _agreed(place, int(_seconds(short, place)), dist.ReduceOp.MAX)
    if seconds > MOST_S:
        return f"it is expected to take {seconds} s on each rank, more than {MOST_S:g} s"
    needed, free = BYTES * short.parameters, _least_free(place)
    if needed > free:
        return (f"it takes {needed / 1e9:.3g} GB on each rank, and a rank has "
                f"{max(free, 0) / 1e9:.3g} GB")
    return None


def short_words(short: Training) -> str:
    """Return what was compared, for people."""
    return (f"the timed model ({short.parameters / 1e6:.4g} M parameters) in a step of "
            f"{short.global_batch} x {short.seq_length} tokens")


def _seconds(short: Training, place: Place) -> float:
    """Return the assumed seconds of a comparison, as if all ranks were on this node."""
    assert short.tokens is not None  # noqa: S101  (it has no images)
    ranks_per_core = max(1.0, place.world_size / granted_cores(KernelFiles()))
    return ranks_per_core * comparison_s(short.parameters, short.tokens, place.device.type)


def _least_free(place: Place) -> int:
    """Return the bytes that the rank with the fewest can take, as if all were on one node.

    The half of what is free is left to what else is there.
    """
    free = psutil.virtual_memory().available // place.world_size
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    held = KernelFiles().process_bytes("VmData")
    if limit != resource.RLIM_INFINITY and held is not None:
        free = min(free, limit - held)
    if place.device.type == "cuda":
        free = min(free, free_bytes(place.device))
    return _agreed(place, free // 2, dist.ReduceOp.MIN)


def _agreed(place: Place, value: int, how: dist.ReduceOp.RedOpType) -> int:
    """Return the least or the greatest value of all ranks."""
    found = torch.tensor([value], dtype=torch.int64, device=place.device)
    if place.world_size > 1 and place.group is not None:
        dist.all_reduce(found, how, group=place.group)
    return int(found)
