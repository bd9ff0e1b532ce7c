"""The plan of a kind whose plug-in cannot be used: a skip with the reason."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcbench.config.section import Block
from hpcbench.errors import ConfigError, PluginError
from hpcbench.kinds.kind import Planner
from hpcbench.plan.case import Case, case_id
from hpcbench.plan.points import PlanRequest
from hpcbench.plan.workload import UnknownWorkload, Workload

if TYPE_CHECKING:
    from hpcbench.config.schema import Config


class UnusablePlanner(Planner):
    """Plans one skipped case for each block; of stored cases it keeps what was stored."""

    def __init__(self, kind: str, problem: str) -> None:
        self._kind = kind
        self._problem = problem

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return no axis: which of the block's keys are axes is unknown."""
        return {}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        """Yield the one case that stands for all points of the block."""
        keys = block.model_dump(mode="json", exclude=set(Block.model_fields))
        identity = block.model_dump(mode="json", exclude={"name"})
        config = job.config
        yield Case(
            case_id=case_id({**identity, "job_size": job.world_size}), index=0, block=title,
            kind=self._kind, backend=block.backend[0], device=block.device[0],
            world_size=job.world_size, env=(), mode=config.measure.mode, warmup=0, iterations=1,
            validate=False, timeout_s=config.launch.timeout_s, wakeup_s=config.launch.wakeup_s,
            workload=UnknownWorkload(keys, self._kind), needs=(), estimate_s=0.0,
            skip=f"kind {self._kind} cannot be used: {self._problem}", memory_bytes=0)

    def workload_from_json(self, data: Mapping[str, Any]) -> UnknownWorkload:
        """Keep what was stored."""
        return UnknownWorkload(data, self._kind)


class GuardedPlanner(Planner):
    """The planner of a plug-in: what it raises costs the cases of its kind only."""

    def __init__(self, kind: str, planner: Planner) -> None:
        self._kind = kind
        self._planner = planner
        self._problem = ""

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return the axes; none if the plug-in fails, whose cases are then a skip."""
        try:
            return {str(axis): int(length)
                    for axis, length in self._planner.lengths(block, config).items()}
        except ConfigError:
            raise
        except Exception as error:
            self._problem = f"{type(error).__name__}: {error}"
            return {}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        """Yield the cases, or the one that stands for them if the plug-in fails."""
        problem = self._problem
        if not problem:
            try:
                yield from [self._checked(case) for case in self._planner.cases(title, block, job)]
                return
            except ConfigError:
                raise
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
        yield from UnusablePlanner(self._kind, problem).cases(title, block, job)

    def workload_from_json(self, data: Mapping[str, Any]) -> Workload:
        """Rebuild a workload; if the plug-in fails, keep what was stored."""
        with contextlib.suppress(Exception):
            return self._planner.workload_from_json(data)
        return UnknownWorkload(data, self._kind)

    def merged(self, same: Sequence[Workload]) -> Workload:
        """Return the one workload that stands for several; the first if the plug-in fails."""
        with contextlib.suppress(Exception):
            return self._planner.merged(same)
        return same[0]

    def advice(self, work: Workload, available_bytes: int) -> str:
        """Return what would fit; nothing if the plug-in fails."""
        with contextlib.suppress(Exception):
            return self._planner.advice(work, available_bytes)
        return ""

    def canary(self, world_size: int, timeout_s: float, wakeup_s: float) -> Case | None:
        """Return the plug-in's canary; none if the plug-in fails."""
        with contextlib.suppress(Exception):
            return self._planner.canary(world_size, timeout_s, wakeup_s)
        return None

    def _checked(self, case: object) -> Case:
        if isinstance(case, Case) and case.kind == self._kind:
            return case
        raise PluginError(f"its planner yields what is no case of kind {self._kind}")
