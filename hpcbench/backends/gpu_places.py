"""Which GPU each rank of a job takes: one of its own, whatever its launcher shows it."""

from __future__ import annotations

from collections.abc import Sequence


def visible_gpus(uuids: Sequence[str], visible_devices: str | None) -> tuple[str, ...]:
    """Return a name for each GPU a rank sees that is the same in all processes of its node.

    That is the UUID; where a driver gives none, the entry of CUDA_VISIBLE_DEVICES, else the number.
    """
    listed = [entry.strip() for entry in (visible_devices or "").split(",") if entry.strip()]
    listed = listed if len(listed) == len(uuids) else [str(i) for i in range(len(uuids))]
    return tuple(uuid or f"GPU {entry}" for uuid, entry in zip(uuids, listed, strict=True))


def gpu_places(seen: Sequence[tuple[str, Sequence[str]]]) -> list[int | None]:
    """Return by rank the place of its GPU among those it sees, None if lower ranks have them all.

    ``seen`` holds by rank the host and `visible_gpus`. Each rank takes the first one that is free.
    So ranks that see all GPUs of a node take one after another. A rank that is shown some of
    its own (``srun --gpus-per-task``) takes the first of them. A rank's place does not depend on
    the ranks above it.
    """
    taken: set[tuple[str, str]] = set()
    places: list[int | None] = []
    for host, gpus in seen:
        free = [place for place, gpu in enumerate(gpus) if (host, gpu) not in taken]
        places.append(free[0] if free else None)
        taken.update((host, gpus[place]) for place in free[:1])
    return places
