"""Ranks in several dimensions, each with groups of its own on the backend under test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from hpcbench.backends.groups import open_lines
from hpcbench.plan.case import Training
from hpcbench.workloads.collectives.operation import Place


class Grid:
    """The ranks of a place by named dimensions, the outermost first; those of one rank are left out.

    A group is opened for each dimension but for one that has all ranks. Opening is collective over
    all workers, of which the group under test has all. The names of the mesh's dimensions hold
    those of the groups: torch takes meshes of the same ranks and names for the same, and would
    then communicate in the groups, maybe of another backend, of the first of them.
    """

    def __init__(self, place: Place, extents: Mapping[str, int]) -> None:
        wide = {name: extent for name, extent in extents.items() if extent > 1}
        layout = torch.tensor(list(place.numbers)).reshape(list(wide.values()))
        self._opened: list[Any] = []
        self._groups = {name: self._lines(place, layout.movedim(dim, -1))
                        for dim, name in enumerate(wide)}
        self._names = {name: f"{name} {group.group_name}" for name, group in self._groups.items()}
        self._mesh = DeviceMesh.from_group(
            list(self._groups.values()), place.device.type, mesh=layout,
            mesh_dim_names=tuple(self._names.values())) if wide else None

    def _lines(self, place: Place, layout: torch.Tensor) -> Any:
        """Return this rank's group along the last dimension of a layout."""
        lines = layout.reshape(-1, layout.shape[-1]).tolist()
        if len(lines) == 1:
            return place.group
        group = open_lines(place.group, lines, place.number)
        self._opened.append(group)
        return group

    def group(self, name: str) -> Any:
        """Return this rank's group in a dimension. Raises KeyError if that has one rank."""
        return self._groups[name]

    def mesh(self, name: str) -> DeviceMesh | None:
        """Return the mesh of one dimension, None if that has one rank."""
        if self._mesh is None or name not in self._names:
            return None
        return self._mesh[self._names[name]]

    def close(self) -> None:
        """Destroy the groups that were opened and that this rank is in."""
        for group in self._opened:
            dist.destroy_process_group(group)
        self._opened.clear()


def grid_of(spec: Training, place: Place) -> Grid:
    """Return the ranks by replica, pipeline stage and tensor part, the last being neighbours."""
    return Grid(place, {"dp": spec.dp, "pp": spec.pp, "tp": spec.tp})
