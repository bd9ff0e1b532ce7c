"""The planner of primitives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from hpcbench.config.block import Block
from hpcbench.config.schema import Config
from hpcbench.kinds.kind import Planner
from hpcbench.kinds.primitive.plan.block import PrimitiveBlock
from hpcbench.kinds.primitive.plan.cases import draft
from hpcbench.kinds.primitive.plan.points import primitive_points
from hpcbench.kinds.primitive.plan.registry import Registry, load_registry
from hpcbench.kinds.primitive.plan.shapes import joined_origins
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.plan.assemble import assemble
from hpcbench.plan.case import Case
from hpcbench.plan.points import COMMON_AXES, PlanRequest, listed_lengths, number_of_sets
from hpcbench.plan.workload import Workload

_AXES = ("primitive", "m", "n", "k", "model", "layer", "tokens", "degree", "order", *COMMON_AXES)


class PrimitivePlanner(Planner):
    """Plans primitives; the registry of implementations is loaded once."""

    @cached_property
    def _registry(self) -> Registry:
        return load_registry()

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return the number of values of each axis; of implementations that of their sets."""
        assert isinstance(block, PrimitiveBlock)
        return {**listed_lengths(block, _AXES),
                "implementations": number_of_sets(block.implementations),
                **{f"options.{name}": len(values) for name, values in block.options.items()}}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        """Yield the case of every point."""
        assert isinstance(block, PrimitiveBlock)
        for point in primitive_points(title, block, job, self._registry):
            yield assemble(title, block, job, point, draft(point, job))

    def workload_from_json(self, data: Mapping[str, Any]) -> Primitive:
        """Rebuild a primitive; earlier versions stored the paths of its modules, too."""
        kept = {name: value for name, value in data.items() if name not in ("inputs", "runner")}
        options = tuple((str(name), value) for name, value in data["options"])
        several = {name: tuple(data[name]) for name in ("calls", "devices", "modules")}
        return Primitive(**{**kept, **several, "options": options})

    def merged(self, same: Sequence[Workload]) -> Workload:
        """Return the first; one that several models lead to is named after them all."""
        works = [work for work in same if isinstance(work, Primitive)]
        return replace(works[0], shape=joined_origins(work.shape for work in works))
