"""How long a case of a primitive may take: an assumption, never a result."""

from __future__ import annotations

from hpcbench.config.schema import Hardware
from hpcbench.kinds.primitive.plan.demands import reference_flops
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.plan.estimate import ALPHA_S, FLOPS_PER_S, bytes_per_s, device_kind, setup_s


def estimate_primitive_s(
    work: Primitive, device: str, ranks: int, calls: int, validate: bool, hardware: Hardware,
) -> float:
    """Return the assumed seconds of one case: products, wire, and the reference on the CPU."""
    kind = device_kind(device)
    call_s = (work.flops / FLOPS_PER_S[kind] + len(work.calls) * ALPHA_S[kind]
              + work.wire_bytes / bytes_per_s(kind, hardware))
    check_s = reference_flops(work, ranks) / FLOPS_PER_S["cpu"] if validate else 0.0
    return setup_s(work) + calls * call_s + check_s
