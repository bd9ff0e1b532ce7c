"""Meshes of ranks on the backend under test.

torch finds what it remembers of a mesh (placements, plans to redistribute) by ranks, device and
the names of dimensions, not by its groups: of two meshes of the same ranks, one on another backend
or on groups that are closed, it would take the other's groups. So names have the group's in them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from hpcbench.workloads.collectives.operation import Place


def row_of(place: Place, name: str) -> DeviceMesh:
    """Return all ranks of the group under test, in a row."""
    return DeviceMesh.from_group(
        place.group, place.device.type, mesh_dim_names=(_named(name, place.group),))


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
            [column, row], place.device.type, mesh=layout,
            mesh_dim_names=(_named(names[0], column), _named(names[1], row)))

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


def _named(name: str, group: Any) -> str:
    return f"{name} of group {group.group_name}"
