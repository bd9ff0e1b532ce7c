"""How long a case of a training may take: an assumption, never a result."""

from __future__ import annotations

from hpcbench.config.schema import Hardware
from hpcbench.kinds.training.plan.predict import Prediction
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.estimate import ALPHA_S, FLOPS_PER_S, bytes_per_s, device_kind, setup_s


def estimate_training_s(
    work: Training, expected: Prediction, device: str, calls: int, hardware: Hardware,
) -> float:
    """Return the assumed seconds of one case: set-up, its steps, and one more to check."""
    kind = device_kind(device)
    step_s = (expected.hardware_flops / FLOPS_PER_S[kind] + expected.collectives * ALPHA_S[kind]
              + expected.wire_bytes / bytes_per_s(kind, hardware))
    return setup_s(work) + (calls + 1) * step_s
