"""The blocks of all kinds that are installed, as one type: a block's ``kind`` says which it is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, Tag

from hpcbench.config.block import Block
from hpcbench.kinds.registry import kind_aliases, kinds


@cache
def block_classes() -> Mapping[str, type[Block]]:
    """Return the class of the blocks of each kind."""
    return {name: spec.block_class() for name, spec in kinds().items()}


def _kind_of(value: Any) -> str:
    """Return the tag of a raw block; the first kind reports the problem of an unknown one."""
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    kind = kind_aliases().get(str(kind), str(kind))
    return kind if kind in kinds() else next(iter(kinds()))


def _any_block() -> Any:
    tagged = [Annotated[block, Tag(name)] for name, block in block_classes().items()]
    return Annotated[reduce(or_, tagged), Discriminator(_kind_of)]


if TYPE_CHECKING:
    AnyBlock = Block
else:
    AnyBlock = _any_block()
