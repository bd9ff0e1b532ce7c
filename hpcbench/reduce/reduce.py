"""Rank 0's last step, or a laptop's: traces become ``results.h5``.

The same traces always give the same results. Memory is bounded by a group of cases for each
process, whatever the number of ranks: each trace is opened once for all cases of a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hpcbench import __version__
from hpcbench.config.section import fault_texts
from hpcbench.errors import ExitCode, FileError, TraceError
from hpcbench.plan.case import Plan
from hpcbench.reduce import history, run_checks
from hpcbench.reduce.canary import canary_findings, canary_of
from hpcbench.reduce.fold import clock_findings
from hpcbench.reduce.history import Attempts, majority
from hpcbench.reduce.outcome import Context
from hpcbench.reduce.processes import (
    AllCases,
    CaseReducer,
    Processes,
    Work,
    case_bytes,
    case_groups,
    group_bytes,
    reduced_cases,
    sample_counts,
    usual_rows,
)
from hpcbench.reduce.records import with_joint_findings, with_records
from hpcbench.reduce.results import Results, RunInfo
from hpcbench.reduce.results_contents import TelemetryWriter
from hpcbench.reduce.results_file import FILE_NAME, chunk_rows, new_results
from hpcbench.reduce.run_checks import environment_findings, environment_hash, usage_findings
from hpcbench.reduce.topology import topology_of
from hpcbench.reduce.usage import Usages, with_usage
from hpcbench.trace.source import TraceSource, sync_records

_INCOMPLETE_CODES = frozenset({"HB101", "HB110", "HB141"})


def reduce_folder(
    folder: Path, *, allow_mixed: bool = False, processes: Processes | None = None,
) -> Results:
    """Check and stack all traces of a results folder, write ``results.h5``, return its contents.

    Works on folders of finished, stopped and crashed runs. Traces that cannot be used are left
    out and named in the findings. Canary, noise and environment are those of the newest attempt.
    ``processes`` may share the work, by default this one does it alone. Raises FileError if the
    folder cannot be used, TraceError if it holds no plan.
    """
    if not folder.is_dir():
        raise FileError(f"{folder}: no such folder; give the folder that `run` wrote")
    opened = history.open_attempts(folder / "traces")
    plan = _load_plan(folder, [source for sources, _ in opened for source in sources])
    attempts = history.choose_attempts(opened, plan, allow_mixed=allow_mixed)
    sources, context = attempts.newest.sources, history.context_of(plan, attempts)
    headers = [source.header for source in sources.values()]
    topology, clocks = topology_of(headers), context.attempts[-1].clocks
    canary, every = canary_of(sources, plan.world_size), AllCases(topology)
    work = _work(plan, attempts, CaseReducer(attempts, context, topology), processes)
    with reduced_cases(work) as reduced, new_results(
            folder / FILE_NAME, work.rows_of_chunk) as writer:
        for item in reduced:
            every.add(item)
            if item.packed is not None:
                writer.add_rows(item.case, item.packed)
            elif item.outcome.samples is not None:
                writer.add_samples(item.case, item.outcome.samples)
        _add_telemetry(writer.telemetry, attempts, context, every.used)
        cases = [*with_usage(every.results, every.used)]
        findings = [
            *attempts.findings, *environment_findings(headers, plan),
            *run_checks.noise_findings(run_checks.noise_by_rank(sources), headers),
            *clock_findings(clocks, every.unbracketed), *every.findings,
            *run_checks.backend_findings(
                ((item.case, item.library) for item in cases if item.library), headers),
            *run_checks.check_totals(plan, cases),
            *run_checks.order_findings(plan, every.executed),
            *run_checks.sample_findings(cases, headers), *usage_findings(cases),
            *(canary_findings(canary) if canary else ()),
            *run_checks.teardown_findings(attempts.sources)]
        results = with_records(Results(
            _run_info(plan, attempts), plan, tuple(cases), tuple(findings),
            canary, clocks.summary(), told=tuple(writer.telemetry.told), topology=topology),
            observed=every.observed)
        results = with_joint_findings(results)
        writer.finish(results, [(source.header.rank, record) for source in attempts.sources
                                for record in sync_records(source)])
    return results


def _work(
    plan: Plan, attempts: Attempts, reducer: CaseReducer, processes: Processes | None,
) -> Work:
    """Return the cases in groups, and in how many processes they are reduced."""
    counts = sample_counts(plan, attempts)
    sizes = case_bytes(plan, counts)
    n_bytes = sum(sizes)
    processes = Processes() if processes is None else processes.for_bytes(
        n_bytes, max(sizes, default=0))
    size_bytes = group_bytes(n_bytes, processes.most)
    return Work(reducer, [*case_groups(plan, counts, size_bytes)], size_bytes,
                chunk_rows(usual_rows(plan, counts)), processes)


def _add_telemetry(
    writer: TelemetryWriter, attempts: Attempts, context: Context, used: Usages,
) -> None:
    """Write what every rank read of its machine, and note what was read around each case."""
    for number, (intake, attempt) in enumerate(
            zip(attempts.intakes, context.attempts, strict=True)):
        for source in intake.sources.values():
            tables = source.telemetry()
            writer.add(source, tables, number, attempt.clocks)
            used.add_source(source, tables)


def exit_code(results: Results) -> ExitCode:
    """Return what a command that produced these results ends with; the first that applies.

    FINDINGS: a case is wrong, failed or timed out, or a trace or case was rejected.
    INCOMPLETE: a case or pass was not run, or a rank's trace is missing or was never sealed.
    FINDINGS: none is ok, although nothing is left to run.
    OK: everything else.
    """
    statuses = {item.status for item in results.cases if not item.trace_missing}
    excused = _INCOMPLETE_CODES | ({"HB112"} if any(
        item.trace_missing for item in results.cases) else set())
    rejected = any(item.scope != "note" and item.code not in excused for item in results.findings)
    if statuses & {"wrong", "failed", "timeout"} or rejected:
        return ExitCode.FINDINGS
    if "not_run" in statuses or any(item.code in _INCOMPLETE_CODES for item in results.findings):
        return ExitCode.INCOMPLETE
    return ExitCode.OK if "ok" in statuses else ExitCode.FINDINGS


def _load_plan(folder: Path, opened: Sequence[TraceSource]) -> Plan:
    """Return the plan of the folder, or of rank 0's trace if there is none."""
    if (folder / history.PLAN_FILE).is_file():
        return history.read_plan(folder)
    plans = [source.plan for source in opened if source.plan is not None]
    if not plans:
        raise TraceError(f"{folder}: neither plan.json nor a trace of rank 0, which holds it too: "
                         "give the folder that `run` wrote, and copy one of the two into it")
    return plans[0]


def _run_info(plan: Plan, attempts: Attempts) -> RunInfo:
    sources = attempts.newest.sources
    headers = [source.header for source in sources.values()]
    environment = dict(headers[0].environment) if headers else {}
    return RunInfo(
        name=plan.name, run_id=headers[0].run_id if headers else "", plan_hash=plan.plan_hash,
        world_size=plan.world_size, ranks_present=tuple(sources),
        nodes=tuple(dict.fromkeys(header.hostname for header in headers)),
        started_at=str(environment.get("started_at", "")),
        versions=majority([dict(header.versions) for header in headers]) or {},
        environment=environment, hpcbench_version=__version__,
        environment_hash=environment_hash(environment) if headers else None,
        faults=_faults(plan, attempts))


def _faults(plan: Plan, attempts: Attempts) -> tuple[str, ...]:
    """Return the faults of the plan, and those of attempts with another ``fault`` section."""
    of_attempts = (str(text) for source in attempts.sources
                   for text in source.header.environment.get("faults", ()))
    return tuple(dict.fromkeys((*fault_texts(plan.config.get("fault", ())), *of_attempts)))
