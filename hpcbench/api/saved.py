"""Results files of what `hpcbench.measure` timed in a program, for `show`, `compare`, `report`.

A file has a case for each function and kind of call. Each run of the program adds a launch to it,
which is what `compare` needs to know the spread between runs. A repeated measurement of one process
replaces the one before: that would be no other launch."""

from __future__ import annotations

import fcntl
import os
import platform
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hpcbench.errors import FileError
from hpcbench.measurement.environment import machine
from hpcbench.measurement.noise import check_s, look_for_detours
from hpcbench.measurement.process import KernelFiles, allocation
from hpcbench.plan.case import PROGRAM_KIND, Case, Plan, case_id
from hpcbench.reduce.fold import RankClocks
from hpcbench.reduce.outcome import Attempt, OutcomeContext, judge
from hpcbench.reduce.records import with_records
from hpcbench.reduce.results import (
    PROCESSES,
    CaseResult,
    CaseSamples,
    Clocks,
    Finding,
    Results,
    RunInfo,
)
from hpcbench.reduce.results_file import FILE_NAME, new_results, open_results
from hpcbench.reduce.run_checks import environment_hash, noise_findings
from hpcbench.trace import schema
from hpcbench.units import grouped

_WRONG, _NOISE = "wrong_elements", "noise"
_MOST_NOISE_S = 0.5
_ONE_CLOCK = Clocks(n_clocks=1, n_syncs=0, bound_s=0.0, check_error_s=None, drift_ppm=None)
"""That of the ranks of a file, which are of one node."""
Stored = Mapping[str, Any]
Records = Mapping[int, Sequence[schema.Record]]
"""All launches of a case, by rank."""


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file's content: its run, cases with their records, and for each case the process of each
    launch, the wrong elements in each, by rank, and the findings on its noise (None: of an earlier
    version, not measured)."""

    path: Path
    run: RunInfo
    cases: Mapping[str, tuple[Case, Records]]
    processes: Mapping[str, Sequence[str]]
    wrong: Mapping[str, Sequence[Sequence[int]]]
    noise: Mapping[str, Sequence[Sequence[Stored] | None]]


def saved_path(save: Any) -> Path:
    """Return the file to save to. Raises TypeError for anything but a path, FileError for a file of
    other results, of another machine or of other versions."""
    if not isinstance(save, (str, os.PathLike)):
        raise TypeError(f"measure: save is of type {type(save).__name__}; give the path of a "
                        "results file or folder")
    path = Path(os.fspath(save))
    path = path if path.suffix == ".h5" else path / FILE_NAME
    if path.exists():
        with open_results(path) as file:
            _refuse_others(path, file.results)
    return path


def _refuse_others(path: Path, earlier: Results) -> None:
    if {case.kind for case in earlier.plan.cases} != {PROGRAM_KIND}:
        raise FileError(f"{path}: holds results of `hpcbench run`; save to another file")
    for what, ours, theirs in (("versions", _versions(), dict(earlier.run.versions)),
                               ("the machine", (socket.gethostname(),), earlier.run.nodes)):
        if ours != theirs:
            raise FileError(f"{path}: {what} differed when it was written ({theirs}, now "
                            f"{ours}); save to another file, and compare the two")


def _read(path: Path) -> SavedFile:
    """Return the saved content, empty without a file. Raises FileError as `saved_path` does."""
    if not path.exists():
        return SavedFile(
            path, _this_run(path.parent.name if path.name == FILE_NAME else path.stem), {}, {}, {},
            {})
    with open_results(path) as file:
        earlier = file.results
        _refuse_others(path, earlier)
        cases, config = {}, earlier.plan.config
        wrong = config.get(_WRONG, {})
        for item in earlier.cases:
            samples = file.samples(item.case.case_id)
            if samples is not None:
                cases[item.case.case_id] = item.case, _records_of(
                    item, samples, wrong.get(item.case.case_id))
    return SavedFile(
        path, earlier.run, cases, config[PROCESSES], wrong, config.get(_NOISE, {}))


def _versions() -> dict[str, str]:
    loaded = {package: str(module.__version__) for package in ("hpcbench", "torch", "mpi4py")
              if (module := sys.modules.get(package))}
    return {"python": platform.python_version(), **loaded}


def _this_run(name: str) -> RunInfo:
    environment, versions = machine(os.environ), _versions()
    return RunInfo(
        name=name, run_id=secrets.token_hex(4), plan_hash="", world_size=1, ranks_present=(0,),
        nodes=(socket.gethostname(),), started_at=str(environment["started_at"]),
        versions=versions, environment=environment, hpcbench_version=versions["hpcbench"],
        environment_hash=environment_hash(environment))


def _records_of(
    item: CaseResult, samples: CaseSamples, by_launch: Sequence[Sequence[int]] | None,
) -> Records:
    """Return the records that ``samples`` were stacked from; ``by_launch``: wrong elements of each
    rank by launch, None for a file that has only their sum."""
    columns = np.stack([getattr(samples, name) for name in schema.SAMPLE_COLUMNS], axis=-1)
    launches = sorted(set(samples.launch.tolist()))
    reasons = item.timing.stop_reasons if item.timing else ("",) * len(launches)
    wrong = np.full((len(samples.ranks), len(launches)), -1 if item.n_wrong is None else 0)
    wrong[0, 0] = -1 if item.n_wrong is None else item.n_wrong
    if by_launch is not None and np.shape(by_launch) == wrong.T.shape:
        wrong = np.array(by_launch).T
    bad, by_launch_again = np.flatnonzero((wrong > 0).any(axis=0)), []
    for at, launch in enumerate(launches):
        texts = [str(item.detail.get(str(rank), {}).get("wrong", "")) if at in bad[:1] else ""
                 for rank in samples.ranks]  # the file has those of the first wrong launch
        by_launch_again.append(with_checks({rank: replace(program_record(
            item.case, columns[row, samples.launch == launch], reasons[at]), launch=launch)
            for row, rank in enumerate(samples.ranks)},
            [*zip(wrong[:, at].tolist(), texts, strict=True)]))
    return {rank: [of_launch[rank] for of_launch in by_launch_again] for rank in samples.ranks}


def with_checks(
    records: Mapping[int, schema.Record], found: Sequence[tuple[int, str]],
) -> dict[int, schema.Record]:
    """Return the records of one launch with what the checks of each rank found (`total_wrong`); all
    ranks agree on the status, and blame the first that is wrong."""
    first = next((rank for rank, (count, _) in zip(records, found, strict=True) if count > 0), -1)
    reason = next((f"rank {first}: {text}" for count, text in found if count > 0 and text), "")
    return {rank: replace(record, n_wrong=count, blamed_rank=first, reason=reason,
                          status="ok" if first < 0 else "wrong",
                          detail={"wrong": text} if text else {})
            for (rank, record), (count, text) in zip(records.items(), found, strict=True)}


def program_record(case: Case, rows: schema.Samples, stop_reason: str) -> schema.Record:
    """Return a rank's record of one measurement, unchecked; ``rows`` are (sample,
    SAMPLE_COLUMNS)."""
    return schema.Record(
        case_id=case.case_id, pass_index=0, launch=0, attempt=0, status="ok", reason="",
        blamed_rank=-1, mode=case.mode, device=case.device, begin_ns=int(rows[0, 0]),
        end_ns=int(rows[-1, 1]), n_wrong=-1, samples=schema.SampleColumns.of_rows(rows),
        stop_reason=stop_reason)


def identified(case: Case) -> Case:
    """Return the case with an id by what is measured and how."""
    return replace(case, case_id=case_id({
        "work": case.workload.to_json(), "ranks": case.world_size, "device": case.device,
        "backend": case.backend,
        "iterations": case.iterations, "least": case.min_iterations, "warmup": case.warmup,
        "validate": case.validate}))


def own_noise(rank: int, ranks: int, seconds: float) -> tuple[schema.Header, schema.Noise]:
    """Return who this rank is, and what others take of its core before ``seconds`` of measuring."""
    host, process = socket.gethostname(), allocation(KernelFiles(), os.environ)
    header = schema.Header(
        "", "", rank, ranks, rank, host, host, os.getpid(), {}, {"process": process})
    return header, look_for_detours(check_s(_MOST_NOISE_S, seconds))


def append(
    path: Path, case: Case, records: Mapping[int, schema.Record],
    noise: Sequence[tuple[schema.Header, schema.Noise]],
) -> None:
    """Write a file anew, with one more launch of a case, and each rank's noise before it. Raises
    FileError; then the file is as it was. Programs that end at the same time take turns."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"measure: save: {path.parent} cannot be made: {error.strerror}") from None
    with _turn(path.parent):
        _append(_read(path), case, records, [*noise_findings(
            {header.rank: lost for header, lost in noise}, [header for header, _ in noise])])


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Wait until no other program writes into the folder, as far as its file system has locks."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _append(
    saved: SavedFile, case: Case, records: Mapping[int, schema.Record], noise: Sequence[Finding],
) -> None:
    before = [*saved.processes.get(case.case_id, ())]
    own = f"{os.getpid()}/{psutil.Process().create_time():.2f}"
    of_others = [at for at, process in enumerate(before) if process != own]
    kept = len(of_others)
    _, earlier = saved.cases.get(case.case_id, (case, {}))
    longer = {rank: [*(replace(earlier[rank][at], launch=launch)
                       for launch, at in enumerate(of_others)), replace(record, launch=kept)]
              for rank, record in records.items()}
    every = [*{**saved.cases, case.case_id: (case, longer)}.values()]
    cases = tuple(replace(one, index=index) for index, (one, _) in enumerate(every))
    known = saved.noise.get(case.case_id)
    by_launch = [None if known is None else known[at] for at in of_others]
    noises = {**dict.fromkeys(saved.cases, (None,)), **saved.noise,
              case.case_id: [*by_launch, [found.stored() for found in noise]]}
    plan = Plan(
        name=saved.run.name, world_size=max(one.world_size for one in cases), passes=1, cases=cases,
        duplicates=0, launches=max(len(some[0]) for _, some in every),
        plan_hash=case_id({"cases": [one.case_id for one in cases]}),
        config={"name": saved.run.name, PROCESSES: {
            **saved.processes, case.case_id: [*(before[at] for at in of_others), own]}, _WRONG: {
            **saved.wrong, case.case_id: [
                [longer[rank][at].n_wrong for rank in sorted(longer)] for at in range(kept + 1)]},
            _NOISE: noises,
            "measure": {"noise_check_s": _MOST_NOISE_S * all(
                None not in launches for launches in noises.values())}})
    with new_results(saved.path) as writer:
        outcomes = [judge(one, some, _context(one, len(some[0]), saved.run))
                    for one, (_, some) in zip(cases, every, strict=True)]
        for outcome in outcomes:
            if outcome.samples is not None:
                writer.add_samples(outcome.result.case, outcome.samples)
        writer.finish(with_records(Results(
            replace(saved.run, plan_hash=plan.plan_hash, world_size=plan.world_size,
                    ranks_present=tuple(range(plan.world_size))), plan,
            tuple(outcome.result for outcome in outcomes),
            (*(finding for outcome in outcomes for finding in outcome.findings),
             *_worst(noises)), clocks=_ONE_CLOCK)))


def _worst(noises: Mapping[str, Sequence[Sequence[Stored] | None]]) -> Iterator[Finding]:
    """Yield of each code the finding of the launch that lost most."""
    every = [schema.from_values(Finding, found) for launches in noises.values()
             for some in launches for found in some or ()]
    for of_code in grouped((found.code, found) for found in every).values():
        yield max(of_code, key=lambda found: found.share or 0)


def _context(case: Case, launches: int, run: RunInfo) -> OutcomeContext:
    """Return the context in which a case is judged: ranks of one node, which share a clock."""
    ranks = range(case.world_size)
    clocks = RankClocks(dict.fromkeys(ranks, 0), {}, frozenset())
    return OutcomeContext(
        launches=launches, passes=1, attempts=(Attempt(
            frozenset(ranks), frozenset(), clocks, dict.fromkeys(ranks, run.nodes[0])),),
        hardware={}, clock_resolution_ns=float(run.environment.get("clock_resolution_ns") or 0))
