"""A dry run: every case of a plan is set up and called once, as rank 0 of any world, alone.

All groups are of a backend that accepts every call and moves nothing (`backends.counting_backend`).
So a sweep for 64 ranks is tried on a laptop: does torch take the calls? Tensors have no memory
(`backends.dry_step`), so the size of a model does not matter. It is no backend for sweep files,
on purpose: its times would be rows that look like measurements. A dry run keeps no times and writes
no results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hpcbench.backends.availability import COMPILER, tool_facts
from hpcbench.config.load import load_config, source_lines
from hpcbench.config.schema import Launch
from hpcbench.errors import ExitCode
from hpcbench.launch.messages import DryRunAnswer, DryRunRequest, FailureAnswer
from hpcbench.launch.template_process import worker_environment
from hpcbench.launch.verdict import RankOutcome
from hpcbench.launch.worker_pool import WorkerPool
from hpcbench.launch.worker_process import TemplateSpec, WorkerHandle
from hpcbench.measurement.control import SharedProgress
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.expand import make_plan
from hpcbench.report.plan_lines import Trial, print_trials
from hpcbench.texts import Verbosity


def dry_run(
    config: Path | None, overrides: list[tuple[str, object]], world_size: int,
    verbosity: Verbosity = Verbosity.NORMAL,
) -> ExitCode:
    """Try every case for ``world_size`` ranks, and print it; FINDINGS if one was refused."""
    verbosity.details(source_lines(config, overrides))
    checked = load_config(config, overrides)
    plan = make_plan(checked, world_size)
    with verbosity.stage("dry run of all cases"):
        refused = print_trials(plan, trials(plan, checked.launch), verbosity)
    return ExitCode.FINDINGS if refused else ExitCode.OK


def trials(plan: Plan, launch: Launch) -> Iterator[Trial]:
    env = worker_environment(os.environ, launch.pass_env, {})
    spec = TemplateSpec(env, launch.init_timeout_s, plan.kinds)
    worker: WorkerHandle | None = None
    with WorkerPool(spec, SharedProgress.create(1),
                    memory_limit_bytes=launch.memory_limit_bytes) as pool:
        try:
            for case in plan.cases:
                trial = _not_tried(case)
                if trial is None:
                    worker = worker or pool.start_worker(())
                    trial = _tried(case, worker)
                    if trial.outcome == "refused":
                        worker.kill()
                        worker = None
                yield trial
        finally:
            if worker is not None:
                worker.kill()


def _not_tried(case: Case) -> Trial | None:
    if case.skip:
        return Trial(case, "skipped", case.skip)
    work = case.workload
    if work.features.only_on and "cpu" not in work.features.only_on:
        return Trial(case, "not tried", f"{work.implementer} runs on "
                                        f"{' or '.join(work.features.only_on)} only")
    if work.features.needs_ranks:
        return Trial(case, "not tried", f"{work.implementer} connects the ranks by itself, and a "
                                        "dry run has one process")
    tried = work.features.dry_run_workload or work
    missing = [*filter(None, tool_facts(set(tried.features.needs) - {COMPILER}).values())]
    return Trial(case, "not tried", missing[0]) if missing else None


def _tried(case: Case, worker: WorkerHandle) -> Trial:
    """Have a worker set the case up and call it once; after a refusal it is of no use any more."""
    work = case.workload.features.dry_run_workload or case.workload
    worker.send(DryRunRequest(replace(case, workload=work)))
    in_time = worker.wait(case.timeout_s)
    answer = worker.receive() if in_time else None
    if isinstance(answer, DryRunAnswer):
        calls = tuple((name, *counted) for name, counted in answer.calls.items())
        return Trial(case, "accepted", answer.needed and
                     f"with memory, since it reads values ({answer.needed})", calls)
    if isinstance(answer, FailureAnswer) and answer.outcome is RankOutcome.SKIPPED:
        return Trial(case, "skipped", answer.cause)
    return Trial(case, "refused", (
        answer.cause if isinstance(answer, FailureAnswer)
        else worker.how_it_ended() if in_time else f"no end in {case.timeout_s:g} s"))
