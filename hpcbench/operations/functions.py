"""Functions of the user's own that are measured: the decorator, and what a file of them declares.

Nothing here imports torch: a file is imported where it is, in a worker or in a child of the
planner, and what it declares goes on as plain values."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from math import isinf
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

from hpcbench.errors import CaseError
from hpcbench.import_path import die_with_parent
from hpcbench.operations.collectives import collectives
from hpcbench.texts import cut, file_hash, first_line
from hpcbench.units import plural

Plain = str | int | float | bool | None
Value = Plain | tuple[Plain, ...]
"""Types of the arguments of a benchmarked function."""
COMMON = ("backend", "device", "world_size", "dtype", "mode", "warmup", "iterations", "cuda_graph",
          "arrival")
"""Keys of a block that a decorator can give for its function alone."""
PASSED = ("dtype", "device", "world_size")
"""Those of them that a function gets as an argument if it has such a parameter."""
_DECLARED = "__hpcbench_benchmarks__"
"""Where a module that declares benchmarks has them: in its own globals."""
_POINTS = "points"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True)
class TimedCall:
    """The result of a benchmarked function: the timed call and its known properties.

    Attributes:
        step: called without arguments; the only part that is timed.
        prepare: called before each sample, outside of the time.
        check: called after samples that are checked, outside of the time. It returns None or True
            if the result is right, False, how many elements are wrong, or what is wrong as text;
            an AssertionError counts as wrong, too. Without it nothing is checked.
        flops: floating point operations of one call on this rank.
        bytes: bytes of one call on this rank, for a rate; with ``collective`` those of nccl-tests.
        collective: the name of a collective, such as ``all_reduce``: its bus bandwidth is computed.
        output: the tensor that a call writes, or a function that returns it: it is checked where
            ``compare`` names a primitive."""

    step: Callable[[], object]
    prepare: Callable[[], object] | None = None
    check: Callable[[], object] | None = None
    flops: float | None = None
    bytes: float | None = None
    collective: str = ""
    output: Any = None


@dataclass(frozen=True)
class DeclaredFunction:
    """One benchmarked function: its name, its line, and the values of its arguments.

    ``common`` are keys of the block, ``axes`` its own arguments. ``beside`` are implementations
    that are measured, too, where ``compare`` is a primitive. ``settings`` are axes whose values are
    compared with one another. ``parameters`` are those of the function after the context.
    ``points`` are values of several arguments at once, each together with each of the axes."""

    name: str
    line: int
    compare: str = ""
    baseline: bool = False
    beside: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    common: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    axes: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    points: tuple[Mapping[str, Value], ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the names of its own arguments."""
        return (*self.axes, *(self.points[0] if self.points else ()))

    def every_point(self) -> Iterator[dict[str, Value]]:
        """Yield its own arguments for each case of a point of the block."""
        for values in product(*self.axes.values()):
            for point in self.points or ({},):
                yield {**dict(zip(self.axes, values, strict=True)), **point}


class DeclarationError(Exception):
    """A problem of a file of benchmarks, and its line; line 0: none."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(line, message)
        self.line, self.message = line, message


def benchmark(
    function: Callable[..., Any] | None = None, *, compare: str = "",
    baseline: bool | str | Sequence[str] = False,
    settings: str | Sequence[str] = (), name: str = "", **axes: Any,
) -> Any:
    """Mark a function of a file as a benchmark: ``hpcbench run FILE.py`` measures it.

    Each further argument is an axis: a list of values, or one value; a tuple in a list is a value.
    It is a parameter of the function, or one of `COMMON`: backend, device, world_size, dtype, mode,
    warmup, iterations, cuda_graph, arrival.

    Args:
        compare: functions with the same text here do the same and are compared; the name of a
            primitive of ``hpcbench list`` compares with its implementations: then m, n, k, order
            and the primitive's options are axes, too, and need no parameter.
        baseline: True: the others of its ``compare`` are stated as speed-ups over this one. Of a
            primitive, the names of implementations that are measured, too; default: torch.
        settings: arguments that say how, not what: cases that differ in them do the same and are
            compared. Arguments that not all functions of a ``compare`` have are settings anyway.
        name: the name in tables; default: the function's.
        points: arguments that change together: ``[{"m": 8, "n": 64}, {"m": 64, "n": 8}]``."""
    def mark(marked: Callable[..., Any]) -> Callable[..., Any]:
        function = inspect.unwrap(marked)  # behind decorators of others, such as torch.no_grad
        if not inspect.isfunction(function):
            raise TypeError("hpcbench.benchmark marks a function, and this is "
                            f"{type(marked).__name__} {marked!r:.60}; its arguments are axes: "
                            "@hpcbench.benchmark(size=[1, 2])")
        declared = function.__globals__.setdefault(_DECLARED, [])
        declared.append((marked, name or marked.__name__, compare, baseline, settings, axes))
        return marked

    return mark if function is None else mark(function)


@dataclass(frozen=True)
class FunctionFile:
    """A file of benchmarks: its path, the hash of its content, and what it declares, in order."""

    path: str
    sha256: str
    benchmarks: tuple[DeclaredFunction, ...]

    @property
    def title(self) -> str:
        return Path(self.path).name

    def place(self, one: DeclaredFunction) -> str:
        """Return where a function stands, for messages."""
        return f"file: {self.path}:{one.line}: {one.name}"


def load_functions(path: str, sha256: str = "") -> Mapping[str, Callable[..., Any]]:
    """Import a file and return its benchmarked functions by name.

    The file's folder comes last in ``sys.path`` from then on. Raises CaseError if its content is
    not that of the hash, and whatever the file raises."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise CaseError(f"{path}: cannot be read on this rank: {error.strerror}; all ranks need "
                        "the same file") from None
    if sha256 and file_hash(content) != sha256:
        raise CaseError(f"{path}: is not the file that was planned (sha256 {sha256}): all ranks "
                        "need the same file; a changed one needs a new run")
    module = _imported(path, file_hash(os.fsencode(path) + content))
    return {name: function for function, name, *_ in _declared(module)}


def _imported(path: str, suffix: str = "") -> ModuleType:
    """Import a file as a module of its own, once in a process unless it fails."""
    name = f"hpcbench_file_{Path(path).stem}{suffix and f'_{suffix}'}"
    if name in sys.modules:
        return sys.modules[name]
    folder = str(Path(path).resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last: a random.py there takes nobody's place
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DeclarationError(0, "is no Python file: its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look for it there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _declared(module: ModuleType) -> Sequence[tuple[Any, ...]]:
    found: Sequence[tuple[Any, ...]] = vars(module).get(
        _DECLARED, [])
    return found


def describe(path: str) -> str:
    """Return as JSON the benchmarks of a file, for `parsed`, or its problem."""
    try:
        declared = [_benchmark(*one) for one in _declared(_imported(path))]
        _refuse_twins(declared)
        if not declared:
            raise DeclarationError(0, "has no benchmark: put @hpcbench.benchmark() above the "
                                   "function that is to be measured")
    except DeclarationError as error:
        return json.dumps({"line": error.line, "error": error.message})
    except BaseException as error:  # noqa: BLE001 (whatever the file raises when it is imported)
        return json.dumps({"line": line_in(error, path), "error": _error_text(error)})
    return json.dumps({"benchmarks": [asdict(one) for one in declared]})


def _error_text(error: BaseException) -> str:
    """Return type and first line of an error."""
    lines = str(getattr(error, "msg", None) or error).splitlines()
    return f"{type(error).__name__}: {cut(lines[0]) if lines else ''}".rstrip(": ")


def line_in(error: BaseException, path: str) -> int:
    """Return the innermost line of a file that an error passed, or that it is about; 0: none."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno or 0
    lines = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == path]
    return lines[-1] if lines else 0


def _benchmark(
    function: Any, name: str, compare: str, baseline: Any, settings: Any, axes: Mapping[str, Any],
) -> DeclaredFunction:
    """Return the declaration of a decorator. Raises DeclarationError."""
    line = inspect.unwrap(function).__code__.co_firstlineno
    if not _NAME.fullmatch(name):
        raise DeclarationError(line, f"{quoted(name)} is no name for a benchmark: letters, "
                               "digits and _ . - only, at most 64")
    parameters = [*inspect.signature(function).parameters.values()]
    if not parameters:
        raise DeclarationError(line, f"{name} takes no argument; the first is the context: "
                               f"def {name}(ctx, ...)")
    own = {one.name: one for one in parameters[1:]
           if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    points = _points(line, axes.get(_POINTS, ()))
    arguments = {axis: _values(line, axis, values) for axis, values in axes.items()
                 if axis != _POINTS}
    in_points = points[0] if points else ()
    for axis in in_points:
        _check_given_once(line, axis, arguments)
    arguments |= dict.fromkeys(in_points, ())
    for axis in arguments:
        if axis not in own and axis not in COMMON and not compare:
            raise DeclarationError(line, f"{name}: {axis} is no parameter of the function, which "
                                   f"has {', '.join(own) or 'none'} after the context")
    for parameter in own.values():
        if parameter.name in PASSED:
            continue
        if parameter.name in COMMON:
            raise DeclarationError(line, f"{name}: parameter {parameter.name} is a key of every "
                                   "block, which a function does not get; give it another name")
        if parameter.name not in arguments and parameter.default is parameter.empty:
            raise DeclarationError(line, f"{name}: parameter {parameter.name} has no values: add "
                                   f"{parameter.name}=[...] to @hpcbench.benchmark, or give it "
                                   "a default")
    for key, value in (("settings", settings), ("baseline", baseline)):
        if not isinstance(value, (str, bool, list, tuple)):
            raise DeclarationError(line, f"{name}: {key} is {value!r:.60}; give a name, or a list")
    for setting in _names(settings):
        if setting not in arguments:
            raise DeclarationError(line, f"{name}: settings: {setting} is no argument with values;"
                                   f" it has {', '.join(arguments) or 'none'}")
    return DeclaredFunction(
        name, line, str(compare), baseline is True, _names(baseline), _names(settings), tuple(own),
        {axis: values for axis, values in arguments.items() if axis in COMMON},
        {axis: values for axis, values in arguments.items() if axis not in COMMON and values},
        points)


def _check_given_once(line: int, axis: str, arguments: Mapping[str, Any]) -> None:
    """Raise DeclarationError for an argument of points that has values already."""
    if axis in arguments or axis in COMMON:
        why = "is a key of every block" if axis in COMMON else "has values of its own"
        raise DeclarationError(line, f"points: {axis} {why}; give it outside of points alone")


def _points(line: int, given: Any) -> tuple[Mapping[str, Value], ...]:
    """Return the points of a declaration. Raises DeclarationError unless all have the same names.
    """
    points = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if not all(isinstance(point, Mapping) and point and point.keys() == points[0].keys()
               for point in points):
        raise DeclarationError(line, "points: give a list of mappings that have the same names: "
                               '[{"m": 8, "n": 64}, {"m": 64, "n": 8}]')
    for name in points[0] if points else ():
        _values(line, name, list({repr(point[name]): point[name] for point in points}.values()))
    if any(points.index(point) != at for at, point in enumerate(points)):
        raise DeclarationError(line, "points: a point is given twice")
    return points


def _names(value: Any) -> tuple[str, ...]:
    """Return one name, or several, as a tuple; none for True and False."""
    if isinstance(value, bool):
        return ()
    return (value,) if isinstance(value, str) else tuple(map(str, value))


def _values(line: int, axis: str, listed: Any) -> tuple[Value, ...]:
    values = tuple(listed) if isinstance(listed, (list, tuple, range)) else (listed,)
    if not values:
        raise DeclarationError(line, f"{axis}: the list is empty; give at least one value")
    if axis == "arrival":  # has mappings; the check of the block has them all
        return values
    for value in values:
        for part in value if isinstance(value, tuple) else (value,):
            if part is not None and type(part) not in (str, int, float, bool):
                raise DeclarationError(line, f"{axis}: {part!r:.80} is not text, a number, True, "
                                       "False, None or a tuple of these")
            if part != part:
                raise DeclarationError(line, f"{axis}: nan equals no value, so its case would not "
                                       "be found again; give a text, and make the number of it")
    if len(values) != len({(type(value), value) for value in values}):
        raise DeclarationError(line, f"{axis}: a value is given twice")
    return values


def as_value(stored: Any) -> Value:
    """Return an argument from JSON: of `stored_value`, or written by a child of the planner."""
    if isinstance(stored, Mapping):
        return float(stored["float"])
    value: Value = tuple(map(as_value, stored)) if isinstance(  # type: ignore[arg-type]
        stored, list) else stored  # a tuple has no tuples in it
    return value


def stored_value(value: Value) -> Any:
    """Return an argument as JSON has it, which has neither tuples nor infinity."""
    if isinstance(value, tuple):
        return [stored_value(part) for part in value]
    return {"float": str(value)} if isinstance(value, float) and isinf(value) else value


def shown_value(value: Value) -> Plain:
    """Return an argument as tables and summaries have it; tuples and infinity as text."""
    if isinstance(value, tuple):
        return f"({','.join(map(str, value))})"
    return str(value) if isinstance(value, float) and isinf(value) else value


def _refuse_twins(declared: Sequence[DeclaredFunction]) -> None:
    first: dict[str, int] = {}
    for entry in declared:
        if entry.name in first:
            raise DeclarationError(entry.line, f"{entry.name} is the name of two benchmarks, the "
                                   f"first in line {first[entry.name]}; give one another name")
        first[entry.name] = entry.line
    baselines: dict[str, str] = {}
    for entry in declared:
        if entry.baseline and baselines.setdefault(entry.compare, entry.name) != entry.name:
            raise DeclarationError(entry.line, f"{entry.name}: {baselines[entry.compare]} is the "
                                   f"baseline of {entry.compare or 'its group'} already")


def parsed(text: str) -> tuple[DeclaredFunction, ...]:
    """Return the functions that `describe` found. Raises DeclarationError with its problem."""
    data = json.loads(text)
    if "error" in data:
        raise DeclarationError(data["line"], data["error"])
    return tuple(DeclaredFunction(**{
        **one, **{key: tuple(one[key]) for key in ("beside", "settings", "parameters")},
        "common": {axis: tuple(values) for axis, values in one["common"].items()},
        "axes": {axis: tuple(map(as_value, values)) for axis, values in one["axes"].items()},
        "points": tuple({name: as_value(value) for name, value in point.items()}
                        for point in one["points"])}) for one in data["benchmarks"])


def timed_call(returned: Any, name: str) -> TimedCall:
    """Return a benchmarked function's result as a call. Raises CaseError for anything else."""
    if isinstance(returned, TimedCall):
        call = returned
    elif callable(returned):
        call = TimedCall(returned)
    else:
        raise CaseError(f"{name} returned {type(returned).__name__}: return the function that is "
                        "to be timed, or hpcbench.Case(function, ...)")
    for key in ("step", "prepare", "check"):
        value = getattr(call, key)
        if not callable(value) and not (value is None and key != "step"):
            raise CaseError(f"{name}: {key} of hpcbench.Case is {type(value).__name__}, not a "
                            "function")
        if is_deferred(value):
            raise CaseError(f"{name}: {key} of hpcbench.Case is async or a generator: calling it "
                            "runs nothing; give a function that does the work")
    for key in ("flops", "bytes"):
        value = getattr(call, key)
        if value is not None and not (is_number(value) and 0 < value <= MOST_OF_A_CALL):
            raise CaseError(f"{name}: {key} of hpcbench.Case is {quoted(value)}, not a number "
                            "above 0 and up to 10**24 of one call on this rank")
    if call.collective and (call.collective not in tuple(collectives()) or not call.bytes):
        raise CaseError(f"{name}: collective of hpcbench.Case is {quoted(call.collective)}: give "
                        f"the name of one ({', '.join(collectives())}), and bytes")
    return call


def is_number(value: Any) -> bool:
    """Return whether a value is a real number, also of numpy; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def quoted(value: Any) -> str:
    """Return a value in a message; Python writes no number of more than 4,300 digits."""
    try:
        return f"{value!r:.80}"
    except Exception:  # noqa: BLE001 (an object of the user's own may raise anything)
        return f"a {type(value).__name__}"


def is_deferred(function: Any) -> bool:
    return (inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function)
            or inspect.isasyncgenfunction(function))


@contextmanager
def lines_of(path: str) -> Iterator[None]:
    """Put the innermost line of a file that an error passed behind the first line of its text."""
    try:
        yield
    except Exception as error:
        line = line_in(error, path)
        if line and not isinstance(error, OSError):
            first, newline, rest = str(error).partition("\n")
            error.args = (f"{first} ({Path(path).name}:{line}){newline}{rest}",)
        raise


MOST_WRONG = 2**40
MOST_OF_A_CALL = 10.0**24
"""Operations, bytes or seconds of one call; of more, rates can be infinite, which no file has."""


def _element(returned: Any) -> Any:
    """Return the element of an array or a tensor of one, else the value as it is."""
    try:
        return returned.item() if callable(getattr(returned, "item", None)) else returned
    except (ValueError, RuntimeError):
        return returned


def wrong_elements(returned: Any) -> tuple[int, str]:
    """Return the number of wrong elements, and a text on them, from a check's result.

    At most MOST_WRONG are returned; a number below 0, or a float that is not 0, is 1.
    None, True, 0 and "" are right; False, another number and a text are not. Arrays and tensors of
    one element count as their element. Raises TypeError for other values."""
    value = _element(returned)
    if value is None or value is True:
        return 0, ""
    if value is False:
        return 1, "the check returned False"
    if isinstance(value, str):
        return int(bool(value)), cut(first_line(value) or value)
    if isinstance(value, int) and value >= 0:
        count = min(value, MOST_WRONG)  # sums of several calls must fit, too
        return count, f"the check found {plural(count, 'wrong element')}" if value else ""
    if isinstance(value, (int, float)):
        return int(value != 0), f"the check returned {value:g}" if value else ""
    raise TypeError(f"the check returned a {type(value).__name__}; return None or True if the "
                    "result is right, else False, the number of wrong elements, or a text")


@dataclass(frozen=True)
class WrongResult:
    """A wrong result, found by the function's own check (`measurement.loop.Wrong`)."""

    n_wrong: int
    words: str


def checked(check: Callable[[], object]) -> WrongResult | None:
    """Return what a check finds wrong, as `wrong_elements`; an AssertionError is one wrong element.
    """
    try:
        count, text = wrong_elements(check())
    except AssertionError as error:
        count, text = 1, cut(first_line(str(error))) or "an assertion of the check failed"
    return WrongResult(count, text) if count else None


def _main() -> None:
    """Print a file's benchmarks, for the planner; output of the file itself goes to stderr."""
    die_with_parent(0)
    kept = os.dup(1)
    os.dup2(2, 1)
    text = describe(sys.argv[1])
    sys.stdout.flush()
    os.write(kept, text.encode())
    os._exit(0)  # what the file has started may never end


if __name__ == "__main__":
    _main()
