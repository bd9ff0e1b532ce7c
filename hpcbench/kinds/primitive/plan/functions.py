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
        self, title: str, block: Block, job: PlanRequest, func: DeclaredFunction,
        file: FunctionFile,
    ) -> Iterator[Case]:
        """Yield the cases of the function, and of the implementations beside it."""
        primitive = installed().primitives[func.compare]
        if func.points:
            raise ConfigError(f"{file.place(func)}: points: a function compared with a primitive "
                              "has axes only")
        own = {name: _option_values(name, values, func, file) for name, values in func.axes.items()
               if name not in _PROBLEM and name not in primitive.options}
        spec = ImplementationSpec(
            func.name, f"{file.title}:{func.line}", {func.compare: file.path}, options={
                name: Values(values[0], values) for name, values in own.items()})
        common = block.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={
            "kind", "file", "function"})
        raw = {**common, "kind": "primitive", "primitive": func.compare, "implementations": {
            func.name: {name: list(values) for name, values in own.items()},
            **{name: {} for name in func.beside or ("torch",)}},
            "options": {name: list(func.axes[name]) for name in primitive.options
                        if name in func.axes},
            **{name: list(func.axes[name]) for name in _PROBLEM if name in func.axes}}
        yield from cases_of_file(f"{title}-{func.compare}", PrimitiveBlock.of_plain(
            raw, file.place(func)), job, spec, file)


def _option_values(
    name: str, values: Sequence[Value], func: DeclaredFunction, file: FunctionFile,
) -> tuple[Option, ...]:
    """Return the values of an option of an implementation. Raises ConfigError for others."""
    plain = tuple(value for value in values if isinstance(value, (str, int)))
    if len(plain) != len(values) or name not in func.parameters:
        raise ConfigError(f"{file.place(func)}: {name}: of a primitive it must be a parameter of "
                          "the function, and text, a whole number, True or False")
    return plain
