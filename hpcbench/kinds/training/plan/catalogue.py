"""What sweep files can name of trainings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hpcbench.kinds.training.plan.any_model import NAMES, parameters_of, published
from hpcbench.kinds.training.plan.registry import strategies
from hpcbench.plan.options import described


def catalogue() -> dict[str, dict[str, Any]]:
    """Return the models with their published extents, and the strategies with their options."""
    shapes = {name: published(name) for name in NAMES}
    return {
        "models": {name: {**asdict(shape), "layers": shape.layers,
                          "parameters": parameters_of(shape)} for name, shape in shapes.items()},
        "strategies": {spec.name: {"meaning": spec.meaning, "options": described(spec.options)}
                       for spec in strategies()},
    }
