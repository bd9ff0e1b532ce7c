"""The results folder: can every rank write it, is it one folder, and will what is written stay."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.units import rank_list, round_bytes
from hpcbench.validation.lines import Line, fail, not_applicable, ok, spread, warn
from hpcbench.validation.rank_report import JobReport, RankReport, by_value, reasons

_ELSEWHERE = "choose another folder with -o DIR (output.folder)"
_SCARCE_BYTES = 2**30
_TOO_SMALL_BYTES = 16 * 2**20
_SLOW_SYNC_S = 0.25
"""Each case waits for one fdatasync on every rank before it is acknowledged."""
_VOLATILE = ("tmpfs", "ramfs")
_LAYERED = ("overlay",)


def storage_lines(job: JobReport) -> Iterator[Line]:
    """Yield whether the results folder is there for all ranks, its kind, and its free space."""
    bad = reasons(job.ranks, lambda report: report.storage.get("error"))
    first = next((report for report in job.ranks if report.rank == 0), None)
    if bad or first is None:
        yield fail("results folder", spread(bad) or "rank 0 did not answer", _ELSEWHERE)
        return
    yield _synced(job)
    yield _seen(job)
    yield _kind(first)
    yield _free(job)


def _synced(job: JobReport) -> Line:
    slowest = max(job.ranks, key=lambda report: float(report.storage.get("sync_s") or 0))
    seconds = float(slowest.storage.get("sync_s") or 0)
    where = f"{job.ranks[0].storage['folder']}: writes, fsync and rename work"
    if seconds > _SLOW_SYNC_S:
        return warn("results folder", f"{where}, but take {seconds:.2g} s on rank {slowest.rank}; "
                    "every case waits for them", _ELSEWHERE)
    return ok("results folder", where)


def _seen(job: JobReport) -> Line:
    if len(job.ranks) == 1:
        return not_applicable("shared folder", "one rank shares it with no other")
    blind = [report for report in job.ranks if not report.storage.get("seen")]
    if blind:
        places = spread(by_value(blind, lambda report: str(report.storage.get("own"))))
        return warn("shared folder", f"rank {rank_list(one.rank for one in blind)} do(es) not "
                    f"see rank 0's folder; they write to disks of their own (below {places}), and "
                    "send their traces at the end",
                    "choose a folder on a file system that all nodes mount: -o DIR (output.folder)")
    return ok("shared folder", "all ranks see rank 0's folder")


def _kind(first: RankReport) -> Line:
    kind = first.storage.get("kind")
    if kind is None:
        return not_applicable("file system", "the system does not tell which it is")
    if kind in _VOLATILE:
        return warn("file system", f"{kind}: its files are in memory, and gone after a restart",
                    _ELSEWHERE)
    if kind in _LAYERED:
        return warn("file system", f"{kind}: a container's own layer, gone when it is removed",
                    "mount a volume, and name a folder on it with -o DIR")
    return ok("file system", str(kind))


def _free(job: JobReport) -> Line:
    """Judge the rank with the least room: ranks that do not see rank 0's folder have other disks.
    """
    told = [report for report in job.ranks if report.storage.get("free_bytes") is not None]
    if not told:
        return not_applicable("free space", "the file system does not tell")
    least = min(told, key=lambda report: (report.storage.get("free_files") != 0,
                                          report.storage["free_bytes"]))
    free = least.storage["free_bytes"]
    room = f"{round_bytes(free)} free" + (
        "" if all(report.storage.get("seen") for report in job.ranks) else
        f" on {least.hostname}, where rank {least.rank} writes")
    if free < _TOO_SMALL_BYTES or least.storage.get("free_files") == 0:
        lacks = room if free < _TOO_SMALL_BYTES else f"{room}, but no more files can be made"
        return fail("free space", lacks, f"free some, or {_ELSEWHERE}")
    if free < _SCARCE_BYTES:
        return warn("free space", room, f"free some, or {_ELSEWHERE}; a long sweep of many ranks "
                    "can take more")
    return ok("free space", room)
