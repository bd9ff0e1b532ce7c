"""Meshes of ranks on the backend under test.

torch finds what it remembers of a mesh (placements, plans to redistribute) by ranks, device and
the names of dimensions, not by its groups: of two meshes of the same ranks, one on another backend
or on groups that are closed, it would take the other's groups. So names have the group's in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from hpcbench.backends.groups import open_lines
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.operations.place import Place


def row_of(place: Place, name: str) -> DeviceMesh:
    """Return all ranks of the group under test, in a row."""
    return DeviceMesh.from_group(
        place.group, place.device.type, mesh_dim_names=(_named(name, place.group),))


class Grid:
    """The ranks of a place by named dimensions, the outermost first: neighbours differ in the last.

    ``groups`` are this rank's, by dimension. A group is opened for each dimension but for one that
    has all ranks. Opening is collective over all workers, of which the group under test has all.
    """

    def __init__(self, place: Place, extents: Mapping[str, int]) -> None:
        layout = torch.tensor(list(place.numbers)).reshape(list(extents.values()))
        self._opened: list[Any] = []
        self.groups = {name: self._line(place, layout.movedim(dim, -1))
                        for dim, name in enumerate(extents)}
        self._names = {name: _named(name, group) for name, group in self.groups.items()}
        self.mesh = DeviceMesh.from_group(
            list(self.groups.values()), place.device.type, mesh=layout,
            mesh_dim_names=tuple(self._names.values()))

    def _line(self, place: Place, layout: torch.Tensor) -> Any:
        """Return this rank's group along the last dimension of a layout."""
        lines = layout.reshape(-1, layout.shape[-1]).tolist()
        if len(lines) == 1:
            return place.group
        group = open_lines(place.group, lines, place.number)
        self._opened.append(group)
        return group

    def row(self, name: str) -> DeviceMesh | None:
        """Return the mesh of one dimension, None if there is no such dimension."""
        return self.mesh[self._names[name]] if name in self._names else None

    def close(self) -> None:
        """Destroy the groups that were opened and that this rank is in."""
        for group in self._opened:
            dist.destroy_process_group(group)
        self._opened.clear()


def grid_of(spec: Training, place: Place) -> Grid:
    """Return the ranks by replica, pipeline stage and tensor part; dimensions of 1 are left out."""
    degrees = {"dp": spec.dp, "pp": spec.pp, "tp": spec.tp}
    return Grid(place, {name: degree for name, degree in degrees.items() if degree > 1})


def _named(name: str, group: Any) -> str:
    return f"{name} of group {group.group_name}"


def settle(parameters: Iterable[nn.Parameter]) -> None:
    """Lay gradients out as their parameters are, once all of them are there.

    The gradient of a norm's weight is a sum over ranks that each saw some of the tokens: left as
    it is, the optimizer would add it up again in each of its operations. That of an embedding may
    be whole where its weight is divided.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
