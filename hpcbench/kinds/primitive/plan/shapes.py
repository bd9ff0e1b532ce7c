"""Where a block of primitives has its m, n and k from: given, or a published model's layer.

A layer is m tokens times a weight of (k, n). Biases and the attention itself are not products with
a weight and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

from hpcbench.kinds.primitive.plan.block import PrimitiveBlock
from hpcbench.kinds.primitive.plan.spec import PrimitiveSpec
from hpcbench.operations.layers import layer_of


class Shape(NamedTuple):
    """A global problem. ``origin`` says what it was derived from, empty where it was given.

    ``misfit`` is why it is none, or empty: then m, n and k are the undivided layer's.
    """

    m: int
    n: int
    k: int
    origin: str = ""
    misfit: str = ""


def undivided(model: str, layer: str, degree: int) -> str | None:
    """Return why the layer cannot be divided among ``degree`` ranks, or None."""
    bad = [f"{count} {what}" for what, count in layer_of(model, layer).units.items()
           if count % degree]
    return (f"{' and '.join(bad)} of {model} cannot be divided evenly among {degree} ranks"
            if bad else None)


def share_on(model: str, layer: str, degree: int, ranks: int) -> tuple[int, int]:
    """Return (n, k) over ``ranks`` ranks of which each has what one of ``degree`` ranks has.

    With ``ranks`` equal to ``degree`` this is the whole layer. The layer must be dividable.
    """
    weight = layer_of(model, layer)
    if weight.divided == "n":
        return weight.n // degree * ranks, weight.k
    return weight.n, weight.k // degree * ranks


def shapes(block: PrimitiveBlock, primitive: PrimitiveSpec) -> Iterator[Callable[[int], Shape]]:
    """Yield the block's shapes as functions of the number of ranks.

    Without ``layer`` a model gives all that the primitive takes.
    """
    if block.model is None:
        for extents in product(block.m or (), block.n or (), block.k or ()):
            yield partial(_given, Shape(*extents))
        return
    for model, layer, tokens, degree in product(
            block.model, block.layer or primitive.layers, block.tokens or (),
            block.degree or (None,)):
        yield partial(_of_layer, primitive, model, layer, tokens, degree)


def joined_origins(origins: Iterable[str]) -> str:
    """Return what one problem was derived from, of several: ``a, b mlp tp=2``.

    Equal ones are named once; where shapes were given, they are empty and are left out.
    """
    models: dict[str, dict[str, None]] = {}
    for origin in filter(None, origins):
        model, _, layer = origin.partition(" ")
        models.setdefault(layer, {})[model] = None
    return ", ".join(f"{', '.join(names)} {layer}" for layer, names in models.items())


def _given(shape: Shape, ranks: int) -> Shape:
    """Return the shape; it is the same for every number of ranks."""
    return shape


def _of_layer(
    primitive: PrimitiveSpec, model: str, layer: str, tokens: int, degree: int | str | None,
    ranks: int,
) -> Shape:
    """Return the shape on ``ranks`` ranks: each has what a rank of the degree has.

    The usual degree is the number of ranks where they divide the layer among themselves. It is
    1 where each rank has all of the layer (data and expert parallelism).
    """
    usual = ranks if primitive.divides_layer else 1
    degree = int(usual if degree is None else ranks if degree == "all" else degree)
    origin = f"{model} {layer} tp={degree}"
    misfit = _not_taken(primitive, layer) or undivided(model, layer, degree) or ""
    if misfit:
        whole = layer_of(model, layer)
        return Shape(tokens, whole.n, whole.k, origin, misfit)
    return Shape(tokens, *share_on(model, layer, degree, usual), origin)


def _not_taken(primitive: PrimitiveSpec, layer: str) -> str | None:
    if layer in primitive.layers:
        return None
    return (f"{primitive.name} takes its shape from {' or '.join(primitive.layers) or 'no layer'}, "
            f"not from {layer}")
