"""Functions of files as implementations of primitives, for those who plan such files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from hpcbench.config.section import Block
from hpcbench.errors import ConfigError
from hpcbench.kinds.primitive.block import PrimitiveBlock
from hpcbench.kinds.primitive.plan.implementations import installed
from hpcbench.kinds.primitive.plan.planner import cases_of_file
from hpcbench.kinds.primitive.plan.spec import ImplementationSpec
from hpcbench.operations.functions import DeclaredFunction, FunctionFile, Value
from hpcbench.plan.case import Case, PlanRequest
from hpcbench.plan.points import Option, Values

_PROBLEM = ("m", "n", "k", "model", "layer", "tokens", "degree", "order")
"""Axes of a function compared with primitives that are keys of the primitives' block."""


class PrimitiveHost:
    """Makes cases of a function that is compared with a primitive."""

    title = "primitive"

    @property
    def names(self) -> Collection[str]:
        return installed().primitives

    def cases(
        self, title: str, block: Block, job: PlanRequest, one: DeclaredFunction, file: FunctionFile,
    ) -> Iterator[Case]:
        """Yield the cases of the function, and of the implementations beside it."""
        primitive = installed().primitives[one.compare]
        if one.points:
            raise ConfigError(f"{file.place(one)}: points: a function compared with a primitive "
                              "has axes only")
        own = {name: _option_values(name, values, one, file) for name, values in one.axes.items()
               if name not in _PROBLEM and name not in primitive.options}
        spec = ImplementationSpec(
            one.name, f"{file.title}:{one.line}", {one.compare: file.path}, options={
                name: Values(values[0], values) for name, values in own.items()})
        common = block.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={
            "kind", "file", "function"})
        raw = {**common, "kind": "primitive", "primitive": one.compare, "implementations": {
            one.name: {name: list(values) for name, values in own.items()},
            **{name: {} for name in one.beside or ("torch",)}},
            "options": {name: list(one.axes[name]) for name in primitive.options
                        if name in one.axes},
            **{name: list(one.axes[name]) for name in _PROBLEM if name in one.axes}}
        yield from cases_of_file(f"{title}-{one.compare}", PrimitiveBlock.of_plain(
            raw, file.place(one)), job, spec, file)


def _option_values(
    name: str, values: Sequence[Value], one: DeclaredFunction, file: FunctionFile,
) -> tuple[Option, ...]:
    """Return the values of an option of an implementation. Raises ConfigError for others."""
    found = tuple(value for value in values if isinstance(value, (str, int)))
    if len(found) != len(values) or name not in one.parameters:
        raise ConfigError(f"{file.place(one)}: {name}: of a primitive it must be a parameter of "
                          "the function, and text, a whole number, True or False")
    return found
