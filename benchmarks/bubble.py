"""How long do ranks of torch's pipelines wait, and is that the bubble that is predicted?

    python benchmarks/bubble.py [--ranks 4] [--microbatches 8] [--unit-ms 150] [--steps 3]

Each rank is a process that runs torch's own schedule over gloo. Its stages compute next to nothing
and sleep: one unit for a forward or a half of a backward, two for a whole backward. So a busy
machine with few cores will do. Measured is 1 - slept / (ranks x step), of the median step, from the
first rank's begin to the last one's end. Sleeps that last too long and messages make it larger.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from hpcbench.kinds.training.derive.slow_ranks import bubble_share
from hpcbench.kinds.training.plan.spec import (
    SCHEDULE_NAMES,
    Schedule,
    schedule_of,
    stages_on,
    unscheduled,
)

WIDTH = 8
Moments = tuple[float, float]


@dataclass(frozen=True)
class Pipeline:
    """A schedule on so many ranks, whose units are as long."""

    name: str
    ranks: int
    microbatches: int
    unit_s: float

    @property
    def known(self) -> Schedule:
        """Return what is known of the schedule."""
        return schedule_of(self.name)

    @property
    def stages(self) -> int:
        """Return the stages of each rank: the fewest."""
        return self.known.stages_per_rank


def main() -> None:
    """Run each schedule and print both bubbles."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--unit-ms", type=float, default=150)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--schedules", nargs="+", default=SCHEDULE_NAMES, choices=SCHEDULE_NAMES)
    options = parser.parse_args()
    print(f"{options.ranks} ranks, {options.microbatches} micro-batches, units of "
          f"{options.unit_ms:g} ms")
    for name in options.schedules:
        line = Pipeline(name, options.ranks, options.microbatches, options.unit_ms / 1e3)
        if reason := unscheduled(line.known, line.ranks, line.stages, line.microbatches):
            print(f"{name:22} not run: {reason}")
            continue
        found = measured(line, options.steps)
        predicted = bubble_share(name, line.ranks, line.microbatches, line.stages)
        print(f"{name:22} predicted {100 * predicted:5.2f} %, measured {100 * found:5.2f} %")


def measured(line: Pipeline, steps: int) -> float:
    """Return the share of ranks x median step in which no rank slept. Raises RuntimeError."""
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(line.ranks):
            if (child := os.fork()) == 0:
                _end(partial(_run, line, rank, steps, Path(folder)))
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if any(codes):
            raise RuntimeError(f"{line.name}: ranks ended with {codes}")
        step_s = float((Path(folder) / "step_s").read_text())
    return 1 - 3 * line.microbatches * line.stages * line.unit_s / step_s


def _end(run: Callable[[], None]) -> None:
    """End a child without what its parent would do at its own end."""
    code = 1
    try:
        run()
        code = 0
    finally:
        os._exit(code)


def _run(line: Pipeline, rank: int, steps: int, folder: Path) -> None:
    """Take steps, the first of which does not count; rank 0 leaves their median in the folder."""
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), line.ranks),
                            rank=rank, world_size=line.ranks)
    schedule, own = _schedule(line, rank)
    batch = torch.ones(line.microbatches, WIDTH)
    last = line.ranks * line.stages - 1
    inputs = (batch,) if 0 in own else ()
    targets = {"target": batch, "losses": []} if last in own else {}
    moments: list[Moments] = []
    for _ in range(steps + 1):
        dist.barrier()
        begin = time.perf_counter()
        schedule.step(*inputs, **targets)
        moments.append((begin, time.perf_counter()))
    gathered: list[list[Moments]] = [[] for _ in range(line.ranks)]
    dist.all_gather_object(gathered, moments)
    if rank == 0:
        steps_s = [max(end for _, end in step) - min(begin for begin, _ in step)
                   for step in list(zip(*gathered, strict=True))[1:]]
        (folder / "step_s").write_text(str(statistics.median(steps_s)))
    dist.destroy_process_group()


def _schedule(line: Pipeline, rank: int) -> tuple[Any, Sequence[int]]:
    """Return torch's schedule over stages that sleep, and which of them this rank has."""
    own = stages_on(line.known, line.ranks, rank, line.stages)
    passed = torch.empty(1, WIDTH, device="meta", requires_grad=True)
    first = torch.empty(1, WIDTH, device="meta")
    stages = [PipelineStage(
        nn.Linear(WIDTH, WIDTH), stage, line.ranks * line.stages, torch.device("cpu"),
        input_args=passed if stage else first, output_args=passed) for stage in own]
    for stage in stages:
        for method in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
            setattr(stage, method, _sleeping(getattr(stage, method), line.unit_s))
    kind = get_schedule_class(line.name)
    several = issubclass(kind, PipelineScheduleMulti)
    schedule = kind(stages if several else stages[0], line.microbatches,
                    loss_fn=nn.functional.mse_loss, scale_grads=False)
    return schedule, own


def _sleeping(method: Callable[..., Any], unit_s: float) -> Callable[..., Any]:
    """Return a method of a stage that takes as long as the computation that it stands for."""
    whole = method.__name__ == "backward_one_chunk"

    def called(*arguments: Any, **named: Any) -> Any:
        units = 2 if whole and named.get("full_backward", True) else 1
        end = time.perf_counter() + units * unit_s
        result = method(*arguments, **named)
        time.sleep(max(0.0, end - time.perf_counter()))
        return result

    return called


if __name__ == "__main__":
    main()
