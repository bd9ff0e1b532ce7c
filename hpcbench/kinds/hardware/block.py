"""A block of tests of the machine in a sweep file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config.axes import BUFFERS, DTYPE_ALIASES, Axis, Sizes, named, number_or
from hpcbench.config.section import Block, Extent, Text, key
from hpcbench.operations.collectives import NUMBER_BYTES

TESTS = ("gemm", "stream", "pairs", "storage")
"""The tests, in the order of lists and tables."""
GEMM_TYPES = (*NUMBER_BYTES, "tf32", "fp8_e4m3", "fp8_e5m2", "int8")
KEYS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "gemm": ("shape", "model", "layer", "tokens", "fast_accumulation"),
    "stream": ("kernel", "threads", "memory", "numa_node", "size"),
    "pairs": ("what", "direction", "concurrent", "messages", "size", "cache"),
    "storage": ("access", "folder", "size"),
})
"""Test -> the keys that it reads, beside those of all tests."""
KERNELS = ("copy", "scale", "add", "triad", "read_modify_write", "host_to_device",
           "device_to_host", "both_directions")
ACCESSES = ("read_sequential", "read_random", "write_file_per_rank", "write_one_file", "write_dcp")
WHAT = ("latency", "bandwidth")
DIRECTIONS = ("one way", "both at once")
Messages = Annotated[int, Field(ge=1, le=10_000)]
Threads = Annotated[int | str, number_or("all", "number of threads", 4096)]
TestName = Annotated[str, named(TESTS)]
TypeName = Annotated[str, named(GEMM_TYPES, DTYPE_ALIASES)]
Shape = Annotated[Text, BeforeValidator(
    lambda value: str(value) if type(value) is int else value, json_schema_input_type=Text | int)]


class HardwareBlock(Block):
    """One sweep over tests of the machine; each test is the product of the lists that it reads."""

    paths: ClassVar[tuple[str, ...]] = ("folder",)
    own: ClassVar[Mapping[str, Any]] = MappingProxyType({
        "test": list(TESTS), "shape": ["512", "1024"]})

    @property
    def takes_native_backend(self) -> bool:
        """Return whether the machine's backend is taken: files are written without any."""
        return super().takes_native_backend and "storage" not in self.test

    test: Axis[TestName] = Field(description="The test; hpcbench list names them.")
    dtype: Axis[TypeName] = key(("fp32",), "Element type; of gemm also tf32, fp8_e4m3, "
                                "fp8_e5m2 and int8.")
    shape: Axis[Shape] | None = key(
        None, "gemm: MxNxK, or one number for all three; default: a search over sizes.")
    model: Axis[Text] | None = key(None, "gemm: the model whose layers give N and K.")
    layer: Axis[Text] | None = key(None, "gemm: layers of the model; default: all.")
    tokens: Axis[Extent] | None = key(None, "gemm, with model: M, the tokens of a rank.")
    fast_accumulation: Axis[bool] | None = key(
        None, "gemm of fp8 on CUDA: true leaves sums to the matrix units alone, which is faster "
        "and less exact; default: false.")

    kernel: Axis[Annotated[str, named(KERNELS)]] | None = key(
        None, "stream: what is done with the arrays; default: copy, scale, add and triad.")
    threads: Axis[Threads] | None = key(
        None, "stream, on the CPU: threads of a rank; default all: as many as it has cores.")
    memory: Axis[Annotated[str, named(("pinned", "pageable"))]] | None = key(
        None, "stream, between host and GPU: memory of the host; default: both.")
    numa_node: Axis[Annotated[int, Field(ge=0, le=1023)]] | None = key(
        None, "stream: bind threads and memory to this NUMA node; default: not bound.")
    what: Axis[Annotated[str, named(WHAT)]] | None = key(
        None, "pairs: latency or bandwidth; default: both.")
    direction: Axis[Annotated[str, named(DIRECTIONS)]] | None = key(
        None, "pairs: one way, then the other (default), or both at once.")
    concurrent: Axis[bool] | None = key(
        None, "pairs: all pairs of a round at the same time (default), or one pair alone.")
    messages: Axis[Messages] | None = key(
        None, "pairs: round trips, or messages that are under way together; default: 10.")
    cache: Axis[Annotated[str, named(BUFFERS)]] | None = key(
        None, "pairs: cold: each message lies where no cache holds it; warm: all lie in the same "
        "place; default: cold for bandwidth, warm for latency.")
    access: Axis[Annotated[str, named(ACCESSES)]] | None = key(
        None, "storage: what is done with files; default: everything.")
    size: Sizes | None = key(
        None, "stream: bytes of an array of a rank; default: 4 x the last cache, divided among the "
        "ranks. storage: bytes of a rank's file; default: 64MiB. pairs: bytes of a message; "
        "default: 8 for latency, 1MiB for bandwidth.")
    folder: Text | None = key(None, "storage: where files are; default: output.folder.")

    @model_validator(mode="after")
    def _keys_are_of_the_tests(self) -> HardwareBlock:
        readers = {name: [test for test, keys in KEYS.items() if name in keys]
                   for keys in KEYS.values() for name in keys}
        for name, tests in readers.items():
            if getattr(self, name) is not None and not set(tests) & set(self.test):
                raise PydanticCustomError("foreign_key", "{problem}", {"problem": (
                    f"{name}: only test {', '.join(tests)} reads it; this block has "
                    f"{' and '.join(self.test)}")})
        return self
