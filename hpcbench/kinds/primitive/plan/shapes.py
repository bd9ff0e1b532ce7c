"""Where a point of a block of primitives has its m, n and k from: given, or a model's layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from hpcbench.kinds.primitive.plan.block import PrimitiveBlock
from hpcbench.kinds.primitive.plan.model_shapes import layer_of, share_on, undivided
from hpcbench.kinds.primitive.plan.spec import PrimitiveSpec


class Shape(NamedTuple):
    """A global problem. ``origin`` says what it was derived from, empty where it was given.

    ``misfit`` is why it is none, or empty: then m, n and k are the undivided layer's.
    """

    m: int
    n: int
    k: int
    origin: str = ""
    misfit: str = ""


class Given(NamedTuple):
    """A shape that the sweep file spells out."""

    m: int
    n: int
    k: int

    def on(self, primitive: PrimitiveSpec, ranks: int) -> Shape:
        """Return the shape; it is the same for every primitive and number of ranks."""
        return Shape(self.m, self.n, self.k)


class FromModel(NamedTuple):
    """The shape of a model's layer. ``degree`` is None for what is usual: see `on`."""

    model: str
    layer: str
    tokens: int
    degree: int | str | None

    def on(self, primitive: PrimitiveSpec, ranks: int) -> Shape:
        """Return the shape on ``ranks`` ranks: each has what a rank of the degree has.

        The usual degree is the number of ranks where they divide the layer among themselves. It is
        1 where each rank has all of the layer (data and expert parallelism).
        """
        usual = ranks if primitive.divides_layer else 1
        degree = usual if self.degree is None else ranks if self.degree == "all" else self.degree
        degree = int(degree)
        origin = f"{self.model} {self.layer} tp={degree}"
        misfit = (_not_taken(primitive, self.layer)
                  or undivided(self.model, self.layer, degree) or "")
        if misfit:
            whole = layer_of(self.model, self.layer)
            return Shape(self.tokens, whole.n, whole.k, origin, misfit)
        n, k = share_on(self.model, self.layer, degree, ranks if primitive.divides_layer else 1)
        return Shape(self.tokens, n, k, origin)


def shapes(block: PrimitiveBlock, primitive: PrimitiveSpec) -> Iterator[Given | FromModel]:
    """Yield the block's shapes; without ``layer`` a model gives all that the primitive takes."""
    if block.model is None:
        yield from (Given(*extents)
                    for extents in product(block.m or (), block.n or (), block.k or ()))
        return
    for model, layer, tokens, degree in product(
            block.model, block.layer or primitive.layers, block.tokens or (),
            block.degree or (None,)):
        yield FromModel(model, layer, tokens, degree)


def joined_origins(origins: Iterable[str]) -> str:
    """Return what one problem was derived from, of several: ``a, b mlp tp=2``.

    Equal ones are named once; where shapes were given, they are empty and are left out.
    """
    models: dict[str, dict[str, None]] = {}
    for origin in filter(None, origins):
        model, _, layer = origin.partition(" ")
        models.setdefault(layer, {})[model] = None
    return ", ".join(f"{', '.join(names)} {layer}" for layer, names in models.items())


def _not_taken(primitive: PrimitiveSpec, layer: str) -> str | None:
    if layer in primitive.layers:
        return None
    return (f"{primitive.name} takes its shape from {' or '.join(primitive.layers) or 'no layer'}, "
            f"not from {layer}")
