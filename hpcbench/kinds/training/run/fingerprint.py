"""Fingerprints of weights, gradients and updates, by which layouts of one model are compared.

A fingerprint of a parameter is its norm and `PROJECTIONS` projections on random signs. A projection
is linear, so that of a difference is the difference of projections, and its mean square is that
of the norm: E <s, e>^2 = |e|^2 for signs s that are uncorrelated (Achlioptas, Database-friendly
random projections, J. Comput. Syst. Sci. 66, 2003). So two runs that never meet are compared in the
norm of their difference, by a few numbers for each parameter.

The sign of element (i, j) is the product of one of its row and one of its column. Such products are
uncorrelated, too, and all that a rank needs to know of its part is where that begins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from hpcbench.kinds.training.plan.models import shape_of
from hpcbench.kinds.training.plan.spec import adapters_of
from hpcbench.kinds.training.plan.workload import GRADIENTS, UPDATES, WEIGHTS
from hpcbench.kinds.training.run.data import SEED
from hpcbench.kinds.training.run.memory import local
from hpcbench.kinds.training.run.models.build import make_model
from hpcbench.kinds.training.run.models.transformer import TIED, plain_name
from hpcbench.kinds.training.run.reference import LEAST, gradient_bound, in_fp64
from hpcbench.kinds.training.run.strategies.base import RECIPES, Strategy
from hpcbench.operations.data import all_gather_tensor
from hpcbench.operations.place import Place
from hpcbench.units import grouped

PROJECTIONS = 8
"""The mean of so many squares is above 4 times the square of the norm once in 10 000 differences:
that of chi squared with 8 degrees of freedom (`derive.fingerprints.SKETCH`)."""
_PLACE = 4
"""Columns before the sums of a part: first row, rows, first column, columns."""
_CHUNK = 1 << 16
"""Elements that are made fp64 at a time, which stay in a core's cache."""
_DIGITS = 9
Named = Iterable[tuple[str, torch.Tensor, torch.Tensor]]
"""A parameter's name, the parameter, which says where the rank's part is, and what to look at."""


class Fingerprints:
    """What is taken of a strategy before and after its first step. All ranks call each method."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._names = _names(strategy)
        self._tables = {WEIGHTS: self._table(_parameters(strategy))}

    def take_gradients(self) -> None:
        """Look at the gradients of the first global batch, which are there."""
        self._tables[GRADIENTS] = self._table(_gradients(self._strategy))

    def take_updates(self) -> None:
        """Look at what the weights are after the first step of the optimizer."""
        after = self._table(_parameters(self._strategy))
        after[:, _PLACE] = 0  # the norm of a difference is not that of norms: it is not known
        after[:, _PLACE + 1:] -= self._tables[WEIGHTS][:, _PLACE + 1:]
        self._tables[UPDATES] = after

    def answer(self) -> dict[str, Any]:
        """Return them of whole parameters, by kind and name: a norm, then the projections.

        Where ranks have copies of a parameter that are not the same, there are two: the first, and
        the copy that is farthest from it. Beside them stands what they are to be judged by.
        """
        strategy = self._strategy
        spec, bound = strategy.spec, gradient_bound(strategy.spec, strategy.exchange)
        answer: dict[str, Any] = {
            "hidden": spec.hidden, "relative": bound.relative, "floor": bound.floor,
            "least": LEAST, "optimizer": spec.optimizer,
            "rate": RECIPES[spec.optimizer].settings["lr"], "elements": {}}
        for kind, table in self._tables.items():
            parts = _gathered(table, strategy.place)
            answer[kind] = {}
            for name, rows in grouped(  # a tied one is there twice, by one name
                    (self._plain(name), parts[:, row])
                    for row, name in enumerate(self._names)).items():
                copies, elements = whole_copies(torch.cat(rows))
                if copies:
                    answer[kind][name] = copies
                    answer["elements"][name] = elements
        return answer

    def _table(self, items: Named) -> torch.Tensor:
        """Return this rank's sums (parameter, `_PLACE` + 1 + `PROJECTIONS`), fp64; 0 of none."""
        table = torch.zeros((len(self._names), _PLACE + 1 + PROJECTIONS), dtype=torch.float64)
        rows = {name: row for row, name in enumerate(self._names)}
        for name, parameter, value in items:
            if name in rows:
                table[rows[name]] = sums(self._plain(name), parameter, value)
        return table

    def _plain(self, name: str) -> str:
        return plain_name(shape_of(self._strategy.spec), name)


def sums(name: str, parameter: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return where a rank's part of a parameter is, its sum of squares and its projections."""
    own, extents, first = local(value.detach()), tuple(parameter.shape), (0,) * parameter.dim()
    if isinstance(parameter, DTensor):
        _, first = compute_local_shape_and_global_offset(
            parameter.shape, parameter.device_mesh, parameter.placements)
    found = torch.zeros(_PLACE + 1 + PROJECTIONS, dtype=torch.float64)
    if not own.numel():
        return found
    rows, columns = len(own), own[0].numel()
    at, beside = int(first[0]), int(first[1]) if len(first) == 2 else 0
    found[:_PLACE] = torch.tensor([at, rows, beside, columns])
    device = in_fp64(own.device)
    of_rows = _signs(name, 0, extents[0])[at:at + rows].to(device)
    across = parameter[0].numel() if parameter.dim() > 1 else 1
    of_columns = _signs(name, 1, across)[beside:beside + columns].to(device)
    found[_PLACE:] = _sums(own.reshape(rows, columns), of_rows, of_columns).cpu()
    return found


def _sums(own: torch.Tensor, of_rows: torch.Tensor, of_columns: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares and the projections of a part (rows, columns), in fp64."""
    found = torch.zeros(1 + PROJECTIONS, dtype=torch.float64, device=of_rows.device)
    height = max(1, _CHUNK // own.shape[1])
    for part, signs in zip(own.split(height), of_rows.split(height), strict=True):
        wide = part.to(of_rows.device, torch.float64)
        found[0] += wide.square().sum()
        found[1:] += ((wide @ of_columns) * signs).sum(0)
    return found


def whole_copies(rows: torch.Tensor) -> tuple[list[list[float]], int]:
    """Return the fingerprints of a parameter from the rows (rank, ...) of its parts, and its size.

    Ranks with the same part have copies of it. Parts that one rank only has are in every copy.
    """
    parts = list(grouped((tuple(row[:_PLACE].tolist()), row[_PLACE:])
                         for row in rows if row[1] > 0).items())
    if not parts:
        return [], 0
    most = max(len(same) for _, same in parts)
    copies = torch.stack([sum(same[min(copy, len(same) - 1)] for _, same in parts)
                          for copy in range(most)])
    elements = int(sum(place[1] * place[3] for place, _ in parts))
    farthest = int((copies - copies[0]).square().sum(1).argmax())
    told = [_told(copies[copy]) for copy in dict.fromkeys((0, farthest))]
    return told[:1] if told[0] == told[-1] else told, elements


def _told(copy: torch.Tensor) -> list[float]:
    norm = max(float(copy[0]), 0.0) ** 0.5
    return [float(f"{value:.{_DIGITS}g}") for value in (norm, *copy[1:].tolist())]


def _gathered(table: torch.Tensor, place: Place) -> torch.Tensor:
    """Return the tables of all ranks (rank, parameter, ...)."""
    if place.world_size == 1:
        return table[None]
    own = table.to(in_fp64(place.device)).flatten()
    found = own.new_empty(place.world_size * own.numel())
    all_gather_tensor(found, own, group=place.group)
    return found.cpu().view(place.world_size, *table.shape)


def _signs(name: str, dimension: int, extent: int) -> torch.Tensor:
    """Return the signs (extent, PROJECTIONS) of the rows or columns of a parameter."""
    digest = hashlib.sha256(f"{SEED} signs {name} {dimension}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
    drawn = torch.randint(0, 2, (extent, PROJECTIONS), generator=generator)
    return 2.0 * drawn.to(torch.float64) - 1.0


def _names(strategy: Strategy) -> Sequence[str]:
    """Return the names of all that is trained, in one order; also of a last stage's tied weight."""
    if adapters_of(strategy.spec):
        return [name for name, _ in strategy.trained()]
    with torch.device("meta"):
        names = [name for name, _ in make_model(strategy.spec).named_parameters()]
    return names if strategy.spec.pp == 1 or TIED[0] in names else [*names, TIED[0]]


def _parameters(strategy: Strategy) -> Named:
    return ((name, parameter, parameter) for name, parameter in strategy.trained())


def _gradients(strategy: Strategy) -> Named:
    scale = strategy.scaler.get_scale()
    return ((name, parameter, local(parameter.grad) / scale if scale != 1 else parameter.grad)
            for name, parameter in strategy.trained() if parameter.grad is not None)


def why_no_fingerprints(strategy: Strategy) -> str | None:
    """Return why gradients of two layouts of a training are not alike, or None."""
    if strategy.spec.of_images:
        return "rounding decides which values its ReLUs cut"
    if strategy.exchange.projects:
        return "its exchange replaces gradients by projections"
    return None
