"""What a soak keeps of the results of one cycle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcbench.answers.check import GOOD, check_own_limits
from hpcbench.errors import ExitCode
from hpcbench.fleet.soak.record import CaseFacts, CycleFacts, CycleProblem, WrongInCycle
from hpcbench.reduce.reduce import exit_code
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.reduce.results_file import ResultsFile, open_results
from hpcbench.statistics.order import median
from hpcbench.trace.schema import CHECKSUM

READINGS: Mapping[str, str] = {
    "clock_low_mhz": "lowest clock of GPUs, else of cores, MHz",
    "clock_high_mhz": "highest clock of the same, MHz",
    "celsius": "highest temperature of a GPU, degrees C",
    "celsius_spread": "hottest over coolest GPU, by their medians, degrees C",
    "ecc_errors": "memory errors of GPUs", "dropped": "packets dropped"}
"""Reading of a cycle -> its meaning and unit; counters are of a mean pass of all cases together."""


def facts_of(folder: Path, number: int) -> CycleFacts:
    """Return what the results in the folder of a cycle show. Raises FileError without any."""
    with open_results(folder) as file:
        results = file.results
        time = results.run.started_at
        nodes = {place.rank: place.hostname for place in results.topology.ranks}
        wrong = tuple(one for item in results.cases
                      for one in _wrong(item, number, time, nodes))
        used = [item.usage for item in results.cases if item.usage]
        return CycleFacts(
            time, tuple(map(_case, results.cases)), wrong,
            n_wrong=sum(item.n_wrong or 0 for item in results.cases),
            checked=sum(_checked(item) for item in results.cases),
            problems=tuple(_problems(results, number, time)), readings=_readings(file),
            throttled_by=tuple(reason for one in used for reason in one.throttled_by),
            xids=tuple(xid for one in used for xid in one.xids),
            findings=tuple(found.code for found in results.findings),
            versions=tuple(_versions(results)),
            whole=exit_code(results) != ExitCode.INCOMPLETE)


def _case(item: CaseResult) -> CaseFacts:
    return CaseFacts(
        item.case.case_id, item.case.label,
        item.timing.pass_medians_s if item.timing and item.statistics else (),
        item.statistics.max_s if item.statistics else None,
        " ".join(f"{rank}:{left[CHECKSUM]}" for rank, left in sorted(item.detail.items())
                 if item.status == "ok" and left.get(CHECKSUM)))


def _checked(item: CaseResult) -> int:
    return max(item.timing.n_checked or 0, 0) * item.case.world_size if item.timing else 0


def _wrong(
    item: CaseResult, number: int, time: str, nodes: Mapping[int, str],
) -> Iterator[WrongInCycle]:
    if item.status != "wrong":
        return
    by_rank = {int(rank): str(left["wrong"]) for rank, left in item.detail.items()
               if left.get("wrong")}
    if not by_rank and item.blamed_rank is not None:
        by_rank = {item.blamed_rank: item.reason}
    for rank, text in sorted(by_rank.items()):
        yield WrongInCycle(number, time, item.case.case_id, item.case.label, rank,
                          nodes.get(rank, ""), text)


def _problems(results: Results, number: int, time: str) -> Iterator[CycleProblem]:
    for item in results.cases:
        if item.status in ("failed", "timeout"):
            yield CycleProblem(number, time, item.case.label, item.status, item.reason)
    checked = check_own_limits(results)
    for reason in checked.reasons if checked and checked.outcome != GOOD else ():
        yield CycleProblem(number, time, reason.what, reason.outcome, reason.text)


def _readings(file: ResultsFile) -> dict[str, float]:
    used = [item.usage for item in file.results.cases if item.usage]
    lows, highs, errors, dropped = (
        [value for one in used if (value := getattr(one, name)) is not None]
        for name in ("clock_low_mhz", "clock_high_mhz", "ecc_errors", "dropped"))
    heats = [series.values for series in file.time_series("gpu", "celsius")]
    middle = [median(values.astype(float)) for values in heats]
    values = {
        "clock_low_mhz": min(lows, default=None), "clock_high_mhz": max(highs, default=None),
        "celsius": max((float(values.max()) for values in heats), default=None),
        "celsius_spread": max(middle) - min(middle) if middle else None,
        "ecc_errors": sum(errors) if errors else None,
        "dropped": sum(dropped) if dropped else None}
    return {name: float(value) for name, value in values.items() if value is not None}


def _versions(results: Results) -> Iterator[str]:
    if results.run.faults:  # which are part of the environment, and no change of it
        return
    yield from (f"{name} {version}" for name, version in results.run.versions.items())
    yield f"nodes {' '.join(results.run.nodes)}"
    if results.run.environment_hash:
        yield f"environment {results.run.environment_hash}"
