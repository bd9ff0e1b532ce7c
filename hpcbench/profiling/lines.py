"""What a user is told of the profiles of a run, in whole sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MOST_LINES = 12
_MOST_PROBLEMS = 4


def summary_lines(
    entries: Mapping[str, Mapping[str, Any]], flights: int, folder: str, *, enabled: bool,
) -> list[str]:
    """Return at most MOST_LINES lines about the entries of ``profile.json``.

    ``flights`` is the number of cases with flight records, ``enabled`` whether to profile at all.
    """
    found = list(_lines(entries, folder, enabled=enabled))
    if flights:
        found.insert(0, f"{flights} case{'s' * (flights > 1)} did not end: the last collectives of "
                     f"the ranks that waited are in {folder}/flight-*.json")
    return found[:MOST_LINES]


def _lines(
    entries: Mapping[str, Mapping[str, Any]], folder: str, *, enabled: bool,
) -> Iterator[str]:
    merged = [one for one in entries.values() if one["file"]]
    if merged:
        yield (f"{_count(len(merged), 'case')} profiled: {folder} has one trace a case, with a "
               "process for each rank; open it at https://ui.perfetto.dev")
    reported = [one for one in entries.values() if one["rank_files"] and not one["file"]]
    if reported:
        yield (f"{_count(len(reported), 'case')} profiled by nsys: its reports are in "
               f"{folder}/ranks; open them with nsys-ui")
    if enabled and not entries:
        yield "no case is profiled: none ended ok when its turn came"
    if known := [one for one in [*merged, *reported] if one["overhead"]]:
        yield _overhead_line(known)
    if dropped := [one for one in merged if one["n_dropped"]]:
        yield (f"{_count(len(dropped), 'merged trace')} cut: the shortest events of each rank are "
               f"left out, {max(one['n_dropped'] for one in dropped)} at most; the files of the "
               "ranks have them")
    failed = [one for one in entries.values() if one["problem"]]
    for one in failed[:_MOST_PROBLEMS]:
        yield f"no profile of {one['label']}: {one['problem']}"
    if (more := len(failed) - _MOST_PROBLEMS) > 0:
        yield f"nor of {more} more: profile.json says why"
    left_out = [one for one in entries.values() if not one["profiled"]]
    if left_out:
        alike = len({one["why"] for one in left_out}) == 1
        yield (f"{_count(len(left_out), 'case')} not profiled"
               f"{'' if alike else ', first ' + left_out[0]['label']}: {left_out[0]['why']}")


def _overhead_line(known: list[Mapping[str, Any]]) -> str:
    """Say how much longer profiled samples took, of one case or over all."""
    if len(known) == 1:
        one = known[0]["overhead"]
        return (f"profiled samples took {one['ratio']:.2f} times the measured time "
                f"(medians of {one['n_profiled']} and of {one['n_measured']}): they are in no "
                f"statistic{_below_noise(one['ratio'])}")
    ordered = sorted(known, key=lambda one: one["overhead"]["ratio"])
    least, most = ordered[0]["overhead"], ordered[-1]["overhead"]
    counts = sorted({one["overhead"]["n_measured"] for one in known})
    n_measured = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return (f"profiled samples took {least['ratio']:.2f} to {most['ratio']:.2f} times the measured "
            f"time (medians of {least['n_profiled']} and of {n_measured}), most in "
            f"{ordered[-1]['label']}: they are in no statistic{_below_noise(least['ratio'])}")


def _below_noise(least_ratio: float) -> str:
    """Say what a ratio below 1 shows: no profiler makes samples faster."""
    return ("" if least_ratio >= 1 else
            "; below 1 they differ by more than the profiler costs, so its cost is not known")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'} {'is' if number == 1 else 'are'}"
