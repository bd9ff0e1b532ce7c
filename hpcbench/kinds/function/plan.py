"""Functions of a file become cases: a child imports the file and prints its declarations."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hpcbench.config.axes import TARGETS, unknown_name
from hpcbench.config.section import Block
from hpcbench.errors import ConfigError, FileError
from hpcbench.import_path import module_command, passed_variables
from hpcbench.kinds.function.block import FunctionBlock
from hpcbench.kinds.registry import kinds
from hpcbench.operations import functions
from hpcbench.plan import points
from hpcbench.plan.case import Case, Planner, PlanRequest
from hpcbench.plan.support import resolve_device, unfit_world
from hpcbench.plan.workload import Choice, Features, Label, Workload
from hpcbench.records import dataclass
from hpcbench.texts import file_hash

if TYPE_CHECKING:
    from hpcbench.config.schema import Config, Launch

_PAUSE_S = 0.2
"""Between looks at a child whose output somebody else holds open."""
_CALL_S = 1e-3
"""Assumed of a call, for estimates: nothing is known of a function before it runs."""


@dataclass(frozen=True, slots=True)
class FunctionCall(Workload):
    """A call of a benchmarked function.

    ``arguments`` are its own, without those that are keys of the block. ``shared`` names those that
    all functions of its ``compare`` have: the problem, while the others are settings. ``sha256``
    identifies the content of the ``file``."""

    file: str
    sha256: str
    function: str
    arguments: tuple[tuple[str, functions.Value], ...]
    dtype: str
    compare: str = ""
    baseline: bool = False
    shared: tuple[str, ...] = ()
    groups: int = 1

    @property
    def task_name(self) -> str:
        """Return the name that compared functions share."""
        return self.compare or self.function

    def label(self, world_size: int) -> Label:
        return Label(self.function, [
            self.function, *(f"{name}={value}" for name, value in self.shown.items()), self.dtype,
            f"ranks={world_size}"])

    @property
    def features(self) -> Features:
        """Return the features: a profile may show anything, as the function's work is unknown."""
        return Features(files={self.file: self.sha256}, profiled_for=frozenset(TARGETS),
                        enters_late=True)

    def to_json(self) -> dict[str, Any]:
        return {**Workload.to_json(self), "arguments": [
            (name, functions.stored_value(value)) for name, value in self.arguments]}

    def problem(self) -> dict[str, Any]:
        """Return the values that all cases share which are compared with this one."""
        arguments = self.shown
        return {"compare": self.task_name, "dtype": self.dtype,
                **{name: arguments[name] for name in self.shared}}

    def choice(self) -> Choice:
        arguments = self.shown
        axes = {"function": self.function, "dtype": self.dtype, **arguments}
        setting: dict[str, Any] = {"function": self.function} if self.compare else {}
        setting |= {f"options.{name}": value for name, value in arguments.items()
                    if name not in self.shared}
        return Choice(axes, self.problem(), setting)

    @property
    def shown(self) -> dict[str, functions.Plain]:
        """Return the arguments as tables and summaries have them."""
        return {name: functions.shown_value(value) for name, value in self.arguments}


class FunctionHost(Protocol):
    """A kind, called ``title``, of which functions of files can be implementations.

    They are compared with one of its ``names`` (`KindSpec.host_path`)."""

    title: str

    @property
    def names(self) -> Collection[str]: ...

    def cases(
        self, title: str, block: Block, job: PlanRequest, one: functions.DeclaredFunction,
        file: functions.FunctionFile,
    ) -> Iterator[Case]:
        """Yield the cases of a function, and of those beside it. Raises ConfigError."""


def hosts() -> list[FunctionHost]:
    return [spec.made(spec.host_path) for spec in kinds().values() if spec.host_path]


class FunctionPlanner(Planner):
    """Plans the functions of files; each file is imported once."""

    def __init__(self) -> None:
        self._files: dict[str, functions.FunctionFile] = {}

    def lengths(self, block: Block, config: Config) -> Mapping[str, int]:
        """Return the points of all functions together, as one axis."""
        assert isinstance(block, FunctionBlock)
        return {"points": sum(
            math.prod(points.listed_lengths(own, points.COMMON_AXES).values())
            * math.prod(map(len, one.axes.values())) * max(len(one.points), 1)
            for one, own in self._chosen(block, config))}

    def cases(self, title: str, block: Block, job: PlanRequest) -> Iterator[Case]:
        assert isinstance(block, FunctionBlock)
        chosen = self._chosen(block, job.config)
        file = self._file(block.file, job.config)
        for func, own in chosen:
            if host := next((host for host in hosts() if func.compare in host.names), None):
                yield from host.cases(title, own, job, func, file)
                continue
            _refuse_strangers(func, file)
            shared = _shared(func, [other for other, _ in chosen])
            for point in points.common_points(own, job):
                for arguments in func.every_point():
                    work = FunctionCall(
                        file.path, file.sha256, func.name, tuple(arguments.items()), point.dtype,
                        func.compare, func.baseline, shared)
                    yield points.assemble(title, own, job, point, _draft(work, point, job))

    def workload_from_json(self, data: Mapping[str, Any]) -> FunctionCall:
        return FunctionCall(**{**data, "shared": tuple(data["shared"]), "arguments": tuple(
            (name, functions.as_value(value)) for name, value in data["arguments"])})

    def _chosen(
        self, block: FunctionBlock, config: Config,
    ) -> list[tuple[functions.DeclaredFunction, FunctionBlock]]:
        """Return the benchmarks of a block, each with the block as its decorator changes it."""
        file = self._file(block.file, config)
        declared = {one.name: one for one in file.benchmarks}
        for name in block.function or ():
            if name not in declared:
                raise ConfigError(f"function: {unknown_name(name, declared)} ({file.title})")
        return [(one, _with_common(block, one, file))
                for one in (map(declared.__getitem__, block.function) if block.function
                            else file.benchmarks)]

    def _file(self, path: str, config: Config) -> functions.FunctionFile:
        if path not in self._files:
            self._files[path] = read_functions(path, config.launch)
        return self._files[path]


def read_functions(path: str, launch: Launch) -> functions.FunctionFile:
    """Return the declarations of a file, which a child that imports it prints. Raises ConfigError,
    or FileError for one that cannot be read or imported here.

    The child has as long as a worker to start, and its variables."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise FileError(f"file: {path} cannot be read: {error.strerror}") from None
    absolute = str(Path(path).absolute())
    try:
        code, printed = _imported(absolute, launch)
        benchmarks = functions.parsed(printed.decode().rpartition("\n")[2])
    except TimeoutError:
        raise ConfigError(f"file: {path} was not imported within {launch.init_timeout_s:g} s "
                          "(launch.init_timeout_s); keep work out of its top level") from None
    except functions.DeclarationError as error:
        where = f"{path}:{error.line}" if error.line else path
        if error.message.startswith("ModuleNotFoundError"):
            raise FileError(f"file: {where}: {error.message}; a file of benchmarks can only be "
                            "planned where its imports are installed") from None
        raise ConfigError(f"file: {where}: {error.message}") from None
    except ValueError:
        raise ConfigError(f"file: {path} ended Python with code {code} when it was "
                          "imported; see what it printed above") from None
    return functions.FunctionFile(absolute, file_hash(content), benchmarks)


def _imported(path: str, launch: Launch) -> tuple[int, bytes]:
    """Return the code of the child that imports a file, and what it printed. Raises TimeoutError.

    Whatever ends the wait ends the child and all that it started."""
    deadline = time.monotonic() + launch.init_timeout_s
    with subprocess.Popen(
        module_command("hpcbench.operations.functions", path), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, env=passed_variables(os.environ, launch.pass_env),
        start_new_session=True,
    ) as child:
        try:
            while child.poll() is None:
                if time.monotonic() > deadline:
                    raise TimeoutError
                with suppress(subprocess.TimeoutExpired):
                    child.communicate(timeout=_PAUSE_S)
        finally:
            with suppress(ProcessLookupError, PermissionError):  # macOS: of one that has ended
                os.killpg(child.pid, signal.SIGKILL)
        try:
            printed = child.communicate(timeout=_PAUSE_S)[0]
        except subprocess.TimeoutExpired as held:  # by a process in a session of its own
            printed = held.stdout or b""
        return child.returncode, printed


def _with_common(block: FunctionBlock, func: functions.DeclaredFunction,
                 file: functions.FunctionFile) -> FunctionBlock:
    """Return the block with the common keys of a decorator. Raises ConfigError for bad values."""
    if not func.common:
        return block
    given = {name: list(values) for name, values in func.common.items()}
    plain = {**block.model_dump(mode="json", by_alias=True, exclude_none=True), **given}
    return FunctionBlock.of_plain(plain, file.place(func))


def _refuse_strangers(func: functions.DeclaredFunction, file: functions.FunctionFile) -> None:
    """Raise ConfigError for keys that only a function compared with another kind can have."""
    titles = [host.title for host in hosts()]
    others = "".join(f"; as a {host.title}, compare {unknown_name(func.compare, host.names)}"
                     for host in hosts()) if func.compare else ""
    for name in func.arguments:
        if name not in func.parameters:
            raise ConfigError(f"{file.place(func)}: {name} is no parameter of the function, which "
                              f"has {', '.join(func.parameters) or 'none'} after the context"
                              f"{others}")
    if func.beside:
        raise ConfigError(f"{file.place(func)}: baseline: {', '.join(func.beside)}: names are of a "
                          f"{' or '.join(titles) or 'built-in'}'s implementations; True makes this "
                          f"function the baseline{others}")


def _shared(one: functions.DeclaredFunction,
            others: Sequence[functions.DeclaredFunction]) -> tuple[str, ...]:
    """Return the arguments, settings apart, that all functions of one's comparison have."""
    same = [other for other in others if one.compare and other.compare == one.compare]
    return tuple(name for name in one.arguments if name not in one.settings
                 and all(name in other.arguments for other in same))


def _draft(work: FunctionCall, point: points.CommonPoint, job: PlanRequest) -> points.Draft:
    skip = unfit_world(point.backend, point.world_size, job.world_size)
    return points.Draft(
        workload=work, device=resolve_device(point.backend, point.device),
        validate=point.validate, memory_bytes=0, skip=skip,
        estimate_s=points.least_calls(point, job.config) * _CALL_S, identity={
            "kind": "function", "function": work.function, "sha256": work.sha256,
            "arguments": dict(work.to_json()["arguments"]), "dtype": work.dtype})
