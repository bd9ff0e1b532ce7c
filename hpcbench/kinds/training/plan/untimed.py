"""How long a pass of a training takes beside its timed steps: parity, and the counted step.

Assumed as all of an estimate is (`hpcbench.plan.estimate`), for ranks that have a core each.
"""

from __future__ import annotations

from hpcbench.kinds.training.plan.workload import Training

COUNTED_STEPS = 2.5
"""Steps that the counted one takes as long as, at most; seen on the CPU: 1.2 to 2.5."""
_SMALL_S = 0.5
"""A comparison with a model that is made small for it."""
_MOST_S = 15.0
"""What takes longer is not compared as a whole."""
_MOST_PARAMETERS, _MOST_FLOPS = 20_000_000, 2e10
"""Larger models are compared in a short step, beside a small one."""
_TOKENS = 16
"""Of each sample of a short step."""
_PARAMETER_S = 2.5e-7
"""Of one thread on the host for each parameter; measured: 28 s for 124 M parameters."""
_FLOPS_PER_S = {"cpu": 1e10, "cuda": 5e11}
"""In fp64."""


def untimed_s(work: Training, step_s: float, kind: str, *, checked: bool) -> float:
    """Return the assumed seconds of both, where a step takes ``step_s`` on a ``kind`` of device."""
    counts = work.count_step and work.communication != "only"
    return counts * COUNTED_STEPS * step_s + (checked and work.trains) * _parity_s(work, kind)


def _parity_s(work: Training, kind: str) -> float:
    """Return the assumed seconds of parity: the strategy's step is far shorter than in fp64."""
    if work.tokens is None:
        return _SMALL_S
    is_small = (work.parameters <= _MOST_PARAMETERS
                and 6.0 * work.parameters * work.tokens <= _MOST_FLOPS)
    samples = work.dp * work.accumulation
    tokens = work.tokens if is_small else samples * min(work.seq_length, _TOKENS)
    seconds = work.parameters * (_PARAMETER_S + 6.0 * tokens / _FLOPS_PER_S[kind])
    if is_small:
        return seconds
    return _SMALL_S + (seconds if seconds <= _MOST_S else 0.0)
