"""Ranks in two dimensions, each with groups of its own on the backend under test."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from hpcbench.workloads.collectives.operation import Place


class Mesh2d:
    """The ranks of a place as rows of consecutive ranks; columns are the outer dimension.

    Opening is collective over all workers, of which the group under test has all.
    """

    def __init__(self, place: Place, names: tuple[str, str], rows: int) -> None:
        layout = torch.tensor(list(place.numbers)).reshape(rows, -1)
        backend = dist.get_backend(place.group)
        self._groups: list[Any] = []
        column = self._open(layout.t(), backend, place.number)
        row = self._open(layout, backend, place.number)
        self.mesh = DeviceMesh.from_group(
            [column, row], place.device.type, mesh=layout, mesh_dim_names=names)

    def _open(self, lines: torch.Tensor, backend: str, own: int) -> Any:
        """Open a group of each line; return that of this rank, keep it for `close`."""
        opened = [(ranks, dist.new_group(ranks, backend=backend)) for ranks in lines.tolist()]
        group = next(group for ranks, group in opened if own in ranks)
        self._groups.append(group)
        return group

    def close(self) -> None:
        """Destroy the groups that this rank is in."""
        for group in self._groups:
            dist.destroy_process_group(group)
        self._groups.clear()
