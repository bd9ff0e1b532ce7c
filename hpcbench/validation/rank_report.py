"""The reports of a job's ranks, the lines that judge them, and how these are printed.

``python -m hpcbench.validation.rank_report FOLDER MARKER RANK`` prints `probe`: a results folder is
tried in a process of its own, which a dead file system may block."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

from hpcbench import __version__
from hpcbench.backends.availability import RankFacts
from hpcbench.errors import FileError
from hpcbench.import_path import module_command
from hpcbench.launch.run_folder import RunFolder, leave, sees, separate_folder
from hpcbench.plain import Plain
from hpcbench.report.terminal import Sentence, open_console, print_lines
from hpcbench.texts import as_field, say, say_all, to_json
from hpcbench.trace.clock import SyncRecord
from hpcbench.trace.container import whole_file
from hpcbench.trace.schema import from_values
from hpcbench.units import grouped, on_ranks, plural

_NOTHING: Mapping[str, Any] = {
    "error": None, "seen": False, "kind": None, "free_bytes": None, "free_files": None,
    "sync_s": None, "own": None, "made": []}
_OCTAL = re.compile(rb"\\([0-7]{3})")
_TIMEOUT_S = 10.0
_KILL_TIMEOUT_S = 1.0


def run_probe(
    folder: str, marker: str, rank: int, timeout_s: float, env: Mapping[str, str],
) -> dict[str, Any]:
    """Return `probe` of a child process, or in ``error`` that it gave no answer in time."""
    limit_s = min(_TIMEOUT_S, timeout_s)
    command = module_command("hpcbench.validation.rank_report", folder, marker, str(rank))
    child = subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        printed, _ = child.communicate(timeout=limit_s)
        answer: dict[str, Any] = json.loads(printed)
        return answer
    except subprocess.TimeoutExpired:
        child.kill()
        with suppress(subprocess.TimeoutExpired):  # in a hanging file system it cannot even die
            child.wait(_KILL_TIMEOUT_S)
        why = f"does not answer within {limit_s:g} s: the file system hangs"
    except ValueError:
        why = f"could not be tried: the probe ended with {child.wait()}"
    finally:
        if child.stdout:
            child.stdout.close()
    return {**_NOTHING, "folder": folder, "marker": marker, "error": f"{folder}: {why}"}


def probe(folder: Path, marker: str, rank: int) -> dict[str, Any]:
    """Write, sync and rename a file, on rank 0 in a new folder ``marker``, elsewhere beside it.

    A rank that does not see that folder tries its places in a run. Keys: ``folder``, ``marker``;
    ``error`` or None; ``seen``: whether rank 0's marker is there; ``kind`` of file system;
    ``free_bytes``, ``free_files``, None if unknown; ``sync_s``; ``own``: where the rank writes
    otherwise; ``made``: new parent folders, the innermost first, to be removed at the end."""
    answer = {**_NOTHING, "folder": str(folder), "marker": marker}
    place = folder / marker
    try:
        if rank == 0:
            missing = _missing(folder)
            folder.mkdir(parents=True, exist_ok=True)
            answer["made"] = missing
            place.mkdir()
        answer["seen"] = sees(place)
        if not answer["seen"]:
            return {**answer, **_separate(place, rank)}
        answer["sync_s"] = _written_s(place / f"rank{rank}")
        answer |= _room(place)
        answer["kind"] = _kind(place)
    except FileError as error:
        answer["error"] = str(error)
    except OSError as error:
        answer["error"] = f"{folder}: {error.strerror}"
    return answer


def _room(place: Path) -> dict[str, int | None]:
    room = os.statvfs(place)
    return {"free_bytes": room.f_bavail * room.f_frsize,
            "free_files": room.f_favail if room.f_files else None}


def _written_s(path: Path) -> float:
    began = time.perf_counter()
    with whole_file(path) as part:
        part.write_bytes(b"hpcbench validate\n" * 256)
    return time.perf_counter() - began


def _separate(place: Path, rank: int) -> dict[str, Any]:
    """Try where a run would have this rank write, in folders of its own."""
    host, name = socket.gethostname(), f"{place.name}-{rank}"
    made = _missing(place.parent)
    own, tried = separate_folder(RunFolder(place.with_name(name), name), host, rank)
    if own is None:
        why = "; ".join(tried).replace(name, "RUN")
        return {"made": made, "error": f"{host} does not see {place.parent} of rank 0, and has no "
                                       f"place of its own ({why})"}
    folder = RunFolder(own, name)
    file = folder.traces / f"rank{rank}"
    try:
        return {"made": made, "sync_s": _written_s(file), "own": str(own.parent),
                **_room(folder.traces)}
    finally:
        with suppress(OSError):
            file.unlink()
        leave(folder)


def remove(probed: Mapping[str, Any]) -> None:
    """Remove the folder of rank 0's probe, and the parents that it made if they are empty."""
    shutil.rmtree(Path(probed["folder"]) / probed["marker"], ignore_errors=True)
    remove_empty(probed["made"])


def remove_empty(made: list[str]) -> None:
    """Take away the folders that a probe made on the way, the innermost first."""
    for name in made:
        with suppress(OSError):
            Path(name).rmdir()


def _missing(folder: Path) -> list[str]:
    """Return the folder and its parents that do not exist, the innermost first."""
    missing = []
    for path in (folder, *folder.parents):
        with suppress(OSError):  # what lies in a folder that is closed to this rank
            if not path.exists():
                missing.append(str(path))
    return missing


def _kind(place: Path) -> str | None:
    """Return the type of file system: proc(5), mountinfo; its mount point is the longest."""
    path, kinds = place.resolve(), {}
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
            mount, _, behind = line.partition(b" - ")
            point = _OCTAL.sub(lambda found: bytes([int(found[1], 8)]), mount.split()[4])
            kinds[os.fsdecode(point)] = os.fsdecode(behind.split()[0])
    around = [point for point in kinds if path.is_relative_to(point)]
    return kinds[max(around, key=len)] if around else None


if __name__ == "__main__":
    print(json.dumps(probe(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class RankReport:
    """The report of one rank. Where something is missing, its ``..._error`` gives the reason.

    ``local_rank`` is that on its ``node``, which ranks of a machine share. ``mpi`` is the library's
    name or ``none``; ``versions`` of `launch.probe`; ``machine`` of `measurement.environment`;
    ``facts`` of `backends.facts`, None without torch; ``interface`` of the job's sockets; ``clock``
    a `SyncRecord`; ``storage`` of `probe`; ``shm_bytes`` free in /dev/shm; ``not_utf8`` of
    `validation.machine`; ``core_files`` the limit in bytes, "unlimited", or 0 where none is
    written. ``core_use`` of `use_since` over the report."""

    rank: int
    local_rank: int
    hostname: str
    node: str
    mpi: str
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] | None = None
    facts_error: str = ""
    interface: str | None = None
    network_error: str = ""
    clock: Mapping[str, Any] | None = None
    clock_error: str = ""
    storage: Mapping[str, Any] = field(default_factory=dict)
    shm_bytes: int | None = None
    core_files: int | str = 0
    not_utf8: tuple[str, ...] = ()
    core_use: Mapping[str, Any] = field(default_factory=dict)

    def of(self, *names: str) -> Any:
        value: Any = self.machine
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def rank_facts(self) -> RankFacts:
        """Return the facts for the checks of backends. Raises ValueError if there are none."""
        if self.facts is None:
            raise ValueError(f"rank {self.rank} reported nothing of its torch: {self.facts_error}")
        return RankFacts(self.rank, self.hostname, self.local_rank, self.facts)

    def sync_record(self) -> SyncRecord | None:
        return None if self.clock is None else from_values(SyncRecord, self.clock)


RANK_REPORT: Plain[RankReport] = Plain(RankReport)
"""A report as plain JSON values and back, for the way to rank 0."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """The reports of all ranks, and which ranks did not answer.

    ``announced``: ranks and launcher by the launcher's variables, or None. ``world_size_fix``: the
    remedy if MPI sees another number. ``lost``: rank -> host of those without an answer in
    ``timeout_s``. ``start_error``: why there is no MPI, or why torchrun's ranks did not meet.
    ``mixed``: what is of two MPIs, and the remedy."""

    world_size: int
    ranks: tuple[RankReport, ...]
    announced: tuple[int, str] | None = None
    world_size_fix: str = ""
    lost: Mapping[int, str] = field(default_factory=dict)
    timeout_s: float = 0.0
    start_error: str = ""
    mixed: tuple[str, ...] = ()

    @property
    def by_torchrun(self) -> bool:
        return self.announced is not None and self.announced[1] == "torchrun"

    @property
    def by_node(self) -> dict[str, list[RankReport]]:
        return grouped((report.node, report) for report in self.ranks)

    @property
    def with_facts(self) -> list[RankReport]:
        return [report for report in self.ranks if report.facts is not None]


def by_value(
    ranks: Iterable[RankReport], value: Callable[[RankReport], Value],
) -> dict[Value, list[int]]:
    """Return which ranks have which value; the one that most have comes first."""
    groups = grouped((value(report), report.rank) for report in ranks)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def reasons(
    ranks: Iterable[RankReport], reason: Callable[[RankReport], str | None],
) -> dict[str, list[int]]:
    """Return which ranks give which reason, without those that give none."""
    return {why: owners for why, owners in by_value(ranks, reason).items() if why}


def by_version(
    ranks: Iterable[RankReport], name: str, missing: str = "none",
) -> dict[str, list[int]]:
    return by_value(ranks, lambda report: report.versions.get(name, missing))


class State(str, Enum):
    """Whether a subject is as it should be; only ``fail`` makes the exit code 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"


_STYLES: Mapping[State, str] = MappingProxyType({
    State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red", State.NOT_APPLICABLE: "dim"})


@dataclass(frozen=True, slots=True)
class CheckLine:
    """The state of one subject and how to fix it; ``fix`` is "" where nothing is to do."""

    subject: str
    state: State
    found: str
    fix: str = ""


def ok(subject: str, found: str) -> CheckLine:
    return CheckLine(subject, State.OK, found)


def warn(subject: str, found: str, fix: str) -> CheckLine:
    """Return a line about what costs speed or some cases, and how to fix it."""
    return CheckLine(subject, State.WARN, found, fix)


def fail(subject: str, found: str, fix: str) -> CheckLine:
    """Return a line about what stops a run or spoils its results, and how to fix it."""
    return CheckLine(subject, State.FAIL, found, fix)


def not_applicable(subject: str, why: str) -> CheckLine:
    return CheckLine(subject, State.NOT_APPLICABLE, why)


def values_text(groups: Mapping[Any, list[int]]) -> str:
    """Return ``8 cores on rank 0-2, 1 core on rank 3``; the value alone if all ranks have it."""
    return str(next(iter(groups))) if len(groups) == 1 else on_ranks(groups)


def show(
    lines: Sequence[CheckLine], ranks: int, nodes: int, *, as_json: bool, full: bool = False,
) -> None:
    """Print the verdict on standard output; ``full``: also why some lines do not apply."""
    console = open_console()
    if as_json:
        say_all(rendered(lines, as_json=True, ranks=ranks, nodes=nodes))
    elif console.is_terminal:
        table = Table("", "subject", "found", "fix", title=f"hpcbench {__version__} validate")
        for line in lines if full else _brief(lines):
            table.add_row(Text(line.state.value, style=_STYLES[line.state]), *(
                Text(as_field(text)) for text in (line.subject, line.found, line.fix)))
        console.print(table)
        console.print(_total(lines))
    else:
        say(f"hpcbench {__version__} validate: {plural(ranks, 'rank')} on "
            f"{plural(nodes, 'node')}")
        print_lines([*_texts(lines if full else _brief(lines)), Text(_total(lines))])


def show_problems(lines: Sequence[CheckLine]) -> None:
    if problems := [line for line in lines if line.state in (State.WARN, State.FAIL)]:
        print_lines(_texts(problems))


def rendered(lines: Sequence[CheckLine], *, as_json: bool, **job: int) -> str:
    """Return the lines as plain text with their total, or as JSON with the values of ``job``."""
    if as_json:
        return to_json({"schema": "hpcbench.validate", "schema_version": 1,
                        "hpcbench": __version__, **job, "counts": _counts(lines),
                        "lines": [asdict(line) for line in lines]}, indent=1)
    return "\n".join([*(line.plain for line in _texts(lines)), _total(lines)])


def _brief(lines: Sequence[CheckLine]) -> list[CheckLine]:
    """Return the lines that apply, then one line that names the other subjects."""
    left_out = [line.subject for line in lines if line.state is State.NOT_APPLICABLE]
    return [*(line for line in lines if line.state is not State.NOT_APPLICABLE),
            *([not_applicable(", ".join(left_out), "(-v: why)")] if left_out else [])]


def _texts(lines: Sequence[CheckLine]) -> Iterator[Sentence]:
    """Yield each line, and its fix below it, subjects aligned."""
    width = max((len(line.subject) for line in lines if "," not in line.subject), default=0)
    below = width + 8
    for line in lines:
        yield Sentence(f"{line.state.value:<4}  {as_field(line.subject):<{width}}  "
                       f"{as_field(line.found)}", below)
        if line.fix:
            yield Sentence(f"{'':<{below}}fix: {as_field(line.fix)}", below)


def _counts(lines: Sequence[CheckLine]) -> dict[str, int]:
    counts = Counter(line.state for line in lines)
    return {state.value: counts[state] for state in State}


def _total(lines: Sequence[CheckLine]) -> str:
    return ", ".join(f"{count} {name}" for name, count in _counts(lines).items() if count)
