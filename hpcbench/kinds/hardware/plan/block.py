"""A block of tests of the machine in a sweep file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config.axes import Axis, Sizes, named
from hpcbench.config.block import Block, Extent
from hpcbench.config.names import DTYPE_ALIASES, DTYPES
from hpcbench.config.section import Text, key

TESTS = (
    "gemm",
    "pairs",
)
"""The tests, in the order of lists and tables."""
GEMM_TYPES = (*DTYPES, "tf32", "fp8_e4m3", "fp8_e5m2", "int8")
KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "gemm": ("shape", "model", "layer", "tokens"),
    "pairs": ("what", "direction", "at_once", "message_size", "messages"),
})
"""Test -> the keys that only it reads."""
WHAT = ("latency", "bandwidth")
DIRECTIONS = ("one way", "both at once")
Messages = Annotated[int, Field(ge=1, le=10_000)]
TestName = Annotated[str, named(TESTS)]
TypeName = Annotated[str, named(GEMM_TYPES, DTYPE_ALIASES)]


class HardwareBlock(Block):
    """One sweep over tests of the machine: of each test the product of the lists that it reads."""

    test: Axis[TestName] = Field(description="What is measured; hpcbench list names them.")
    dtype: Axis[TypeName] = key(("fp32",), "Element type; of gemm also tf32, fp8_e4m3, "
                                "fp8_e5m2 and int8.")
    shape: Axis[Text] | None = key(
        None, "gemm: MxNxK, or one number for all three; default: a search over sizes.")
    model: Axis[Text] | None = key(None, "gemm: the model whose layers give N and K.")
    layer: Axis[Text] | None = key(None, "gemm: layers of the model; default: all.")
    tokens: Axis[Extent] | None = key(None, "gemm, with model: M, the tokens of a rank.")

    what: Axis[Annotated[str, named(WHAT)]] | None = key(
        None, "pairs: latency or bandwidth; default: both.")
    direction: Axis[Annotated[str, named(DIRECTIONS)]] | None = key(
        None, "pairs: one way, then the other (default), or both at once.")
    at_once: Axis[bool] | None = key(
        None, "pairs: all pairs of a round at the same time (default), or one pair alone.")
    message_size: Sizes | None = key(
        None, "pairs: bytes of a message; default: 8 for latency, 1MiB for bandwidth.")
    messages: Axis[Messages] | None = key(
        None, "pairs: round trips, or messages that are under way together; default: 10.")

    @model_validator(mode="after")
    def _keys_are_of_the_tests(self) -> HardwareBlock:
        given = self.model_fields_set
        for test, keys in KEYS.items():
            foreign = [name for name in keys if name in given]
            if foreign and test not in self.test:
                raise PydanticCustomError("foreign_key", "{problem}", {"problem": (
                    f"{', '.join(foreign)}: only test {test} reads it; this block has "
                    f"{' and '.join(self.test)}")})
        return self
