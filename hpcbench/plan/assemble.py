"""What cases of every kind have in common: where a point runs, how it is measured, its id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcbench.config.block import Block
from hpcbench.plan.case import Case, case_id
from hpcbench.plan.points import CommonPoint, PlanRequest
from hpcbench.plan.support import BACKEND_TRAITS, needs, unfit_for_graph, unfit_for_mps
from hpcbench.plan.workload import Workload

if TYPE_CHECKING:
    from hpcbench.config.schema import Config, Hardware


@dataclass(frozen=True, slots=True)
class Draft:
    """What a kind of workload adds to a point.

    ``identity``: what makes the workload this workload; ``estimate_s``: of one pass, 0 if skipped;
    ``memory_error``: by what share the estimate of its memory may be off.
    """

    workload: Workload
    device: str
    validate: bool
    memory_bytes: int
    skip: str | None
    estimate_s: float
    identity: Mapping[str, Any]
    host_bytes: int = 0
    memory_error: float = 0.0


def assemble(title: str, block: Block, job: PlanRequest, point: CommonPoint, draft: Draft) -> Case:
    """Return the case of a point."""
    config = job.config
    env = tuple(sorted({**dict(BACKEND_TRAITS[point.backend].env), **dict(point.env)}.items()))
    least, most = sample_bounds(point, config)
    skip = (_unfit_device(point, draft) or draft.skip or _contradiction(point)
            or _not_captured(point, draft))
    note = "" if skip else _hardly_fits(draft, config.hardware)
    return Case(
        case_id=case_id(_identity(point, draft, env, config)), index=0, block=title,
        kind=block.kind, backend=point.backend, device=draft.device,
        world_size=point.world_size, env=env, mode=point.mode, warmup=point.warmup,
        iterations=most, validate=draft.validate,
        timeout_s=block.timeout_s or config.launch.timeout_s, wakeup_s=point.wakeup_s,
        workload=draft.workload, skip=skip,
        needs=() if skip else (*needs(point.backend, draft.device), *draft.workload.needs()),
        estimate_s=0.0 if skip else draft.estimate_s, memory_bytes=draft.memory_bytes,
        host_bytes=draft.host_bytes, min_iterations=least, batch=calls_of_sample(point, config),
        memory_error=draft.memory_error, note=note, cuda_graph=point.cuda_graph)


def sample_bounds(point: CommonPoint, config: Config) -> tuple[int, int]:
    """Return the least and the most timed samples of a pass; they are equal if fixed."""
    if isinstance(point.iterations, str):
        return config.measure.min_iterations, config.measure.max_iterations
    return point.iterations, point.iterations


def least_calls(point: CommonPoint, config: Config) -> int:
    """Return how many calls a pass makes at least, warm-ups counted, for estimates."""
    return (point.warmup + sample_bounds(point, config)[0]) * calls_of_sample(point, config)


def calls_of_sample(point: CommonPoint, config: Config) -> int:
    """Return how many calls one sample is."""
    return config.measure.batch if point.mode == "pipelined" else 1


def too_large(
    memory_bytes: int, host_bytes: int, device: str, hardware: Hardware, error: float = 0.0,
) -> str | None:
    """Return why the buffers do not fit the declared device, or None.

    What is over by less than the ``error`` of the estimate, a share, is tried. On a CPU the
    device's memory is the host's; otherwise what is declared is not the host's.
    """
    memory_bytes += host_bytes if device == "cpu" else 0
    limit = hardware.memory_per_device_gb
    if limit is None or hardware.device_type not in (None, device):
        return None
    if memory_bytes <= limit * 1e9 * (1 + error):
        return None
    return (f"needs {memory_bytes / 1e9:.3g} GB of memory per rank, more than "
            f"hardware.memory_per_device_gb {limit:g}")


def _hardly_fits(draft: Draft, hardware: Hardware) -> str:
    """Return what is to be known of a case that is tried although it may not fit, or nothing."""
    over = too_large(draft.memory_bytes, draft.host_bytes, draft.device, hardware)
    if over is None:
        return ""
    return (f"{over}, by less than the {100 * draft.memory_error:g} % that the prediction may be "
            "off: it is tried")


def _unfit_device(point: CommonPoint, draft: Draft) -> str | None:
    """Return what the device cannot do for any backend, or None."""
    if draft.device != "mps":
        return None
    work = draft.workload
    return unfit_for_mps(point.world_size, work.dtype, work.collective_calls())


def _not_captured(point: CommonPoint, draft: Draft) -> str | None:
    """Return why no CUDA graph can hold what is called, or None; also if none is asked for."""
    if not point.cuda_graph:
        return None
    work = draft.workload
    return (unfit_for_graph(point.backend, draft.device, work.collective_calls())
            or work.not_captured())


def _contradiction(point: CommonPoint) -> str | None:
    """Return why the point's environment selects something else than its backend, or None."""
    selected = dict(BACKEND_TRAITS[point.backend].env)
    return next((f"env {name}={value} contradicts {point.backend}, which sets {selected[name]}"
                 for name, value in point.env if selected.get(name, value) != value), None)


def _identity(
    point: CommonPoint, draft: Draft, env: tuple[tuple[str, str], ...], config: Config,
) -> dict[str, Any]:
    """Return what makes a case this case; limits and labels do not."""
    identity: dict[str, Any] = {
        **draft.identity,
        "backend": point.backend, "device": draft.device, "world_size": point.world_size,
        "env": dict(env), "mode": point.mode, "warmup": point.warmup,
        "iterations": point.iterations, "validate": draft.validate,
    }
    if point.mode == "pipelined":
        identity["batch"] = config.measure.batch
    if point.cuda_graph:
        identity["cuda_graph"] = True
    if point.wakeup_s != config.launch.wakeup_s:
        identity["wakeup_s"] = point.wakeup_s
    return identity
