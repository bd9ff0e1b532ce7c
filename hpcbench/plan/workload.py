"""What a case runs: one collective, one distributed primitive, or the steps of one training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.training.plan.workload import Training

Workload = Collective | Primitive | Training


def workload_from_json(data: Mapping[str, Any]) -> Workload:
    """Rebuild a workload from the values of `dataclasses.asdict`."""
    if "collective" in data:
        return Collective(**data)
    options = tuple((str(name), value) for name, value in data["options"])
    if "strategy" in data:
        flops = tuple((str(name), int(count)) for name, count in data["flops"])
        return Training(**{**data, "options": options, "flops": flops,
                           "calls": tuple(data["calls"]),
                           "modules": tuple(data.get("modules", ()))})
    several = {name: tuple(data[name]) for name in ("calls", "devices", "modules")}
    return Primitive(**{**data, **several, "options": options})
