"""The sweep file as frozen, typed, range-checked objects; every key with its meaning."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from hpcbench.config.axes import Iterations, OneOrMany, Ports
from hpcbench.config.blocks import AnyBlock
from hpcbench.config.fault import Fault
from hpcbench.config.section import (
    NAME_PATTERN,
    Backend,
    Count,
    DeviceType,
    Dtype,
    Kind,
    Mode,
    Order,
    Positive,
    Section,
    Text,
    Timeout,
    Wakeup,
    Warmup,
)


class Hardware(Section):
    """What is known of the machine; what is left out is asked of the machine, never guessed."""

    device_type: DeviceType | None = Field(default=None, description="cpu, cuda or mps.")
    num_devices: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Devices per node.")
    memory_per_device_gb: Positive | None = Field(
        default=None, description="GB (1e9 B) of memory a rank may use; larger cases are skipped.")
    interconnect: Text | None = Field(
        default=None, description="Its name, for the report: nvlink, pcie, infiniband, ...")
    network_bandwidth_gbps: Positive | None = Field(
        default=None,
        description="Gbit/s of a node's network in one direction, as adapters are rated.")
    peak_flops: dict[Dtype, Positive] = Field(
        default={}, description="dtype -> peak FLOP/s of one device.")
    link_peaks: dict[str, Positive] = Field(
        default={}, description="Link name -> peak GB/s (1e9 B/s) in one direction.")
    price_per_device_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Price of one device for one hour, in any currency.")


class Launch(Section):
    """How workers are started, limited and given up on."""

    timeout_s: Timeout = Field(
        default=60.0, description="Seconds a case may take before it is given up.")
    init_timeout_s: Timeout = Field(
        default=60.0, description="Seconds workers may take to be ready.")
    wakeup_s: Wakeup = Field(
        default=0.2, description="Seconds between a supervisor's looks at a running case.")
    pass_env: Annotated[tuple[Text, ...], OneOrMany()] = Field(
        default=(),
        description="Shell patterns of further environment variables that workers inherit.")
    address: Text | None = Field(
        default=None,
        description="Name or address on which workers reach rank 0; default: launch.interface's, "
        "else loopback for one node, else what rank 0's host name resolves to.")
    interface: Text | None = Field(
        default=None, description="Network interface of gloo and nccl's sockets, such as eth0.")
    port: Ports = Field(
        default=(0, 0), description="Port on rank 0: 0 for any free one, a number, or {from, to}.")
    memory_limit_gb: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        default=None, description="GB of data memory (RLIMIT_DATA) of a worker.")
    inline: bool = Field(
        default=False, description="Run the worker in the MPI process, for a debugger.")
    allow_mixed: bool = Field(
        default=False, description="Accept ranks whose software versions differ.")


class Measure(Section):
    """How each case is measured, unless its block says otherwise."""

    warmup: Warmup = Field(
        default=5, description="Iterations before the timed ones; kept and flagged.")
    iterations: Iterations = Field(
        default="auto", description="Timed iterations of each pass; auto: until precise enough.")
    min_iterations: Count = Field(default=7, description="auto: at least so many in each pass.")
    max_iterations: Count = Field(default=10_000, description="auto: at most so many in each pass.")
    precision: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.01,
        description="auto: half-width of the 99 % interval of the median, over the median.")
    budget_s: Positive = Field(
        default=30.0, description="auto: seconds for the timed loops of the whole job.")
    check: bool = Field(
        default=True, alias="validate", description="Check timed iterations' results.")
    mode: Mode = Field(default="isolated", description="How an iteration starts.")
    batch: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=20, description="Calls of one sample in mode pipelined.")
    passes: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=3, description="Times the whole plan is run with the same workers' template.")
    launches: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=1, description="Independent repetitions of all passes, with fresh workers.")
    order: Order = Field(default="shuffled", description="Order of cases that share workers.")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = Field(
        default=0, description="Of the shuffled order.")
    canary: bool = Field(
        default=True, description="Measure one small all_reduce now and then, to see drift.")
    noise_check_s: Annotated[float, Field(ge=0, le=60)] = Field(
        default=0.5, description="Seconds of looking how quiet each rank's core is; 0: not at all.")
    clock_sync_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        default=30.0, description="Seconds between synchronisations of several nodes' clocks.")

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Measure:
        if self.min_iterations > self.max_iterations:
            raise PydanticCustomError(
                "iteration_bounds",
                "min_iterations {least} is more than max_iterations {most}",
                {"least": self.min_iterations, "most": self.max_iterations})
        return self


class Output(Section):
    """Where results go."""

    folder: Text = Field(default="results", description="Folder that gets one folder per run.")
    plots: bool = Field(default=True, description="Draw the plots at the end of the run.")


class Config(Section):
    """A whole sweep file."""

    schema_: str | None = Field(
        default=None, alias="$schema", exclude=True, description="For editors; ignored.")
    name: Annotated[str, Field(pattern=NAME_PATTERN)] = Field(
        default="default", description="Name of the results folder: letters, digits and . _ -")
    benchmark: Kind | None = Field(default=None, description="Run only the blocks of this kind.")
    notes: Annotated[tuple[Text, ...], OneOrMany()] = Field(
        default=(), description="Lines for people, printed with the plan and kept with it.")
    only: Text | None = Field(
        default=None, description="Run only cases whose label matches this pattern.")
    model: Annotated[tuple[Text, ...], OneOrMany()] = Field(
        default=(), description="Run only trainings of these models.")
    strategy: Annotated[tuple[Text, ...], OneOrMany()] = Field(
        default=(), description="Run only trainings with these strategies.")
    require: Annotated[tuple[Backend, ...], OneOrMany()] = Field(
        default=(), description="Backends whose skips make the run fail.")
    hardware: Hardware = Hardware()
    launch: Launch = Launch()
    measure: Measure = Measure()
    output: Output = Output()
    benchmarks: Annotated[tuple[AnyBlock, ...], Field(min_length=1)] = Field(
        description="The sweeps, in order.")
    fault: tuple[Fault, ...] = Field(
        default=(), description="Errors made on purpose. For testing only.")

    @model_validator(mode="after")
    def _block_names_differ(self) -> Config:
        named_blocks = [block.name for block in self.benchmarks if block.name]
        twice = sorted({name for name in named_blocks if named_blocks.count(name) > 1})
        if twice:
            raise PydanticCustomError(
                "block_names", 'benchmarks: two blocks have the name "{name}"; names must differ',
                {"name": twice[0]})
        return self

    def plain(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values, in the spelling of the file."""
        return self.model_dump(mode="json", by_alias=True)
