"""How long a pass of a training takes beside its timed steps: parity, and the counted step.

Assumed as all of an estimate is (`hpcbench.plan.estimate`), for ranks that have a core each. The
runner decides by the same figures what parity is tried on.
"""

from __future__ import annotations

from hpcbench.kinds.training.plan.workload import Training

COUNTED_STEPS = 2.5
"""Steps that the counted one takes as long as, at most; seen on the CPU: 1.2 to 2.5."""
MOST_PARAMETERS = 20_000_000
"""Of a model that is tried itself: the reference takes 16 bytes for each, in fp64."""
MOST_FLOPS = 2e10
"""Of its reference, 6 for a parameter and token: seconds of one core in fp64. Larger models are
tried in a short step, beside a small one."""
MOST_S = 15.0
"""Of the short step, by the two rates below: a case has 60 s unless it is given others."""
SHORT_TOKENS = 16
"""Of each sample of a short step."""
_SMALL_S = 0.5
"""A comparison with a model that is made small for it."""
_PARAMETER_S = 2.5e-7
"""Of one thread on the host for each parameter: the reference, weights and states are passed over
dozens of times, on GPUs, too. Measured: 28 s for 124 M parameters."""
_FLOPS_PER_S = {"cpu": 1e10, "cuda": 5e11}
"""In fp64, assumed: of a core, and of a GPU that is not made for it."""
_FINGERPRINT_S = 1.2e-8
"""Of a core for each parameter, over three passes; measured: 0.45 s a pass of 124 M parameters."""


def is_tried_itself(parameters: int, tokens: int) -> bool:
    """Return whether a model and a step of so many tokens are small enough to be tried in full."""
    return parameters <= MOST_PARAMETERS and 6.0 * parameters * tokens <= MOST_FLOPS


def comparison_s(parameters: int, tokens: int, kind: str) -> float:
    """Return the assumed seconds of a step of one process in fp64, on a ``kind`` of device."""
    rate = _FLOPS_PER_S.get(kind, _FLOPS_PER_S["cpu"])
    return parameters * (_PARAMETER_S + 6.0 * tokens / rate)


def untimed_s(work: Training, step_s: float, kind: str, *, checked: bool) -> float:
    """Return the assumed seconds of both, where a step takes ``step_s`` on a ``kind`` of device."""
    counts = work.count_step and work.communication != "only"
    return counts * COUNTED_STEPS * step_s + (checked and work.trains) * _parity_s(
        work, step_s, kind)


def _parity_s(work: Training, step_s: float, kind: str) -> float:
    """Return the assumed seconds of parity: the strategy's step is far shorter than in fp64.

    Of a large model there are also fingerprints: a step, and passes over its parameters.
    """
    if work.tokens is None:
        return _SMALL_S
    if is_tried_itself(work.parameters, work.tokens):
        return comparison_s(work.parameters, work.tokens, kind)
    samples = work.dp * work.accumulation
    seconds = comparison_s(work.parameters, samples * min(work.seq_length, SHORT_TOKENS), kind)
    return (_SMALL_S + step_s + work.parameters * _FINGERPRINT_S
            + (seconds if seconds <= MOST_S else 0.0))
