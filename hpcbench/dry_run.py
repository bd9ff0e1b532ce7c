"""A dry run: every case of a plan is set up and called once, as rank 0 of any world, alone.

All groups are of a backend that accepts every call and moves nothing (`backends.counting_backend`).
So a sweep for 64 ranks is tried on a laptop: does torch take the calls? Tensors have no memory
(`backends.dry_step`), so the size of a model does not matter. It is no backend for sweep files,
on purpose: its times would be rows that look like measurements. A dry run keeps no times and writes
no results.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from hpcbench.backends.availability import COMPILER, tool_facts
from hpcbench.config.load import load_config, source_lines
from hpcbench.config.schema import Launch
from hpcbench.errors import ExitCode
from hpcbench.launch.messages import FailureAnswer, RehearsalAnswer, RehearsalRequest
from hpcbench.launch.template_process import worker_environment
from hpcbench.launch.worker_pool import WorkerPool
from hpcbench.launch.worker_process import TemplateSpec, WorkerHandle
from hpcbench.measure.control import SharedProgress
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.expand import make_plan
from hpcbench.report.plan_lines import Trial, print_trials
from hpcbench.verbosity import Verbosity


def dry_run(
    config: Path | None, overrides: list[tuple[str, object]], world_size: int,
    verbosity: Verbosity = Verbosity.NORMAL,
) -> ExitCode:
    """Try every case of the sweep for ``world_size`` ranks, print what came of it.

    Returns FINDINGS if torch refused a case. Raises ConfigError and LaunchError.
    """
    verbosity.details(source_lines(config, overrides))
    checked = load_config(config, overrides)
    plan = make_plan(checked, world_size)
    with verbosity.stage("dry run of all cases"):
        refused = print_trials(plan, trials(plan, checked.launch), verbosity)
    return ExitCode.FINDINGS if refused else ExitCode.OK


def trials(plan: Plan, launch: Launch) -> Iterator[Trial]:
    """Yield what came of each case, in the order of the plan."""
    env = worker_environment(os.environ, launch.pass_env, {})
    spec = TemplateSpec(env, launch.init_timeout_s, plan.kinds)
    with WorkerPool(spec, SharedProgress.create(1),
                    memory_limit_bytes=launch.memory_limit_bytes) as pool, \
            closing(_Rehearsal(lambda: pool.start_worker(()))) as rehearsal:
        for case in plan.cases:
            yield _not_tried(case) or rehearsal.trial(case)


def _not_tried(case: Case) -> Trial | None:
    """Return why the case is not even tried, or None."""
    if case.skip:
        return Trial(case, "skipped", case.skip)
    work = case.workload
    if work.only_on() and "cpu" not in work.only_on():
        return Trial(case, "not tried", f"{work.implementer} runs on "
                                        f"{' or '.join(work.only_on())} only")
    if work.needs_ranks():
        return Trial(case, "not tried", f"{work.implementer} connects the ranks by itself, and a "
                                        "dry run has one process")
    rehearsed = work.rehearsed()
    missing = [*filter(None, tool_facts(set(rehearsed.needs()) - {COMPILER}).values())]
    return Trial(case, "not tried", missing[0]) if missing else None


class _Rehearsal:
    """Has a worker try cases, and replaces it when it fails."""

    def __init__(self, start_worker: Callable[[], WorkerHandle]) -> None:
        self._start_worker = start_worker
        self._worker: WorkerHandle | None = None

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.kill()
        self._worker = None

    def trial(self, case: Case) -> Trial:
        """Have the case set up and called once."""
        self._worker = worker = self._worker or self._start_worker()
        worker.send(RehearsalRequest(replace(case, workload=case.workload.rehearsed())))
        in_time = worker.wait(case.timeout_s)
        answer = worker.receive() if in_time else None
        if isinstance(answer, RehearsalAnswer):
            calls = tuple((name, *counted) for name, counted in answer.calls.items())
            return Trial(case, "accepted", answer.needed and
                         f"with memory, since it reads values ({answer.needed})", calls)
        reason = (answer.cause if isinstance(answer, FailureAnswer)
                  else worker.how_it_ended() if in_time else f"no end in {case.timeout_s:g} s")
        self.close()
        return Trial(case, "refused", reason)
