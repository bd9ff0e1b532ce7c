"""A command line of a benchmark: its launcher, its environment, its program and their words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import MappingProxyType

from hpcbench.config.axes import MAX_WORLD_SIZE
from hpcbench.errors import UsageError
from hpcbench.units import shortened

_MPIRUN = "mpirun"
_LAUNCHERS: Mapping[str, str] = MappingProxyType({
    **dict.fromkeys((_MPIRUN, "mpiexec", "mpiexec.hydra", "orterun", "prterun"), _MPIRUN),
    "srun": "srun", "torchrun": "torchrun", "deepspeed": "deepspeed"})
"""Program that starts processes -> the one whose options it has."""
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_COUNTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = MappingProxyType({
    _MPIRUN: (("-n", "-np", "--n", "--np", "-c"),
              ("-N", "-npernode", "--npernode", "-ppn", "--ppn", "-perhost"), ()),
    "srun": (("-n", "--ntasks"), ("--ntasks-per-node",), ("-N", "--nodes")),
    "torchrun": ((), ("--nproc-per-node", "--nproc_per_node"), ("--nnodes",)),
    "deepspeed": ((), ("--num_gpus", "--num-gpus"), ("--num_nodes", "--num-nodes"))})
"""Launcher -> its options for the processes, the processes of a node, and the nodes."""
_ALL, _OF_NODE, _NODES = range(3)
_JOINED = re.compile(r"(-n|-np|-N|-c)(\d+)")
"""``-n16``, as one word."""
_SETTING = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_SHELL = re.compile(r"\d?[<>].*|&>.*|\|.*|&&?|;", re.DOTALL)
"""Words with which a shell's redirections, pipes and further commands begin."""
_PYTHON = re.compile(r"python[\d.]*")
_MOST_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True)
class Program:
    """The program that is started: its name without folders, and its words.

    ``before``: the words before it, those of a launcher among them. ``of_shell``: the words from a
    redirection or a pipe on.
    """

    name: str
    words: tuple[str, ...]
    before: tuple[str, ...]
    of_shell: str = ""


@dataclass(slots=True)
class CommandLaunch:
    """The launch of a program: ``processes``, None if the command does not give them.

    ``kept`` are the launcher's words beside those that count processes or set variables,
    ``of_node`` those for the processes of a node, ``left_out`` words before the launcher.
    """

    launcher: str = ""
    processes: int | None = None
    kept: list[str] = field(default_factory=list)
    of_node: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def command(self, ranks: int, *words: str) -> str:
        """Return the command that runs hpcbench on so many ranks, as a shell takes it."""
        hpcbench = ("-m", "hpcbench", "run", *words)
        of_node = self.of_node if ranks == self.processes else []
        if self.launcher == "torchrun" and of_node:
            return shlex.join(("torchrun", *of_node, *self.kept, *hpcbench))
        count = ("srun", "-n") if self.launcher == "srun" else (_MPIRUN, "-np")
        kept = [*of_node, *self.kept] if self.launcher in ("srun", _MPIRUN) else []
        return shlex.join((*count, str(ranks), *kept, "python", *hpcbench))

    def lost(self) -> str:
        """Return the words that `command` does not have."""
        own = [] if self.launcher in ("srun", _MPIRUN, "torchrun") else self.kept
        return " ".join((*self.left_out, *own))


def split_program(text: str, known: re.Pattern[str]) -> Program:
    """Return the program in a command line: the first word whose last part matches ``known``.

    Raises UsageError for text that a shell would not take, and where there is none.
    """
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(f"the command has {len(text):,} characters, more than "
                         f"{_MOST_CHARACTERS:,}")
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise UsageError(f"{_shown(text)}: {str(error).lower()}") from None
    end = next((at for at, word in enumerate(words) if _SHELL.fullmatch(word)), len(words))
    words, more = words[:end], words[end:]
    at = next((at for at, word in enumerate(words)
               if known.fullmatch(PurePosixPath(word).name)), None)
    if at is None:
        raise UsageError(f"{_shown(text)}: names no program that is known: all_reduce_perf and the "
                         "others of nccl-tests, osu_allreduce and others of OSU, ds_bench")
    return Program(PurePosixPath(words[at]).name, tuple(words[at + 1:]), tuple(words[:at]),
                   " ".join(more))


def _shown(text: str) -> str:
    return shortened(" ".join(text.split())) or "the command is empty"


def launch_of(before: Sequence[str]) -> CommandLaunch:
    """Return the launch in the words before a program. Raises UsageError for invalid counts."""
    words = _without_interpreter(before)
    at = next((at for at, word in enumerate(words) if _launcher(word)), len(words))
    launch = CommandLaunch(_launcher(words[at]) if at < len(words) else "")
    launch.left_out = [word for word in _without_settings(words[:at], launch.env)
                       if not _PYTHON.fullmatch(word) and word not in ("-m", "env")]
    if launch.launcher:
        launch.kept = _without_settings(_without_counts(words[at + 1:], launch), launch.env)
    return launch


def _launcher(word: str) -> str:
    return "torchrun" if word in _TORCHRUN_MODULES else _LAUNCHERS.get(
        PurePosixPath(word).name, "")


def _without_interpreter(words: Sequence[str]) -> list[str]:
    """Return the words up to a last ``python -u``, which runs the program."""
    left = list(words)
    while left and (_PYTHON.fullmatch(PurePosixPath(left[-1]).name) or left[-1] in ("-u", "-m")):
        left.pop()
    return left


def _without_counts(words: Sequence[str], launch: CommandLaunch) -> list[str]:
    """Return the words without those that count processes, which ``launch`` gets."""
    kinds = {name: kind for kind, names in enumerate(_COUNTS[launch.launcher]) for name in names}
    found: dict[int, int] = {}
    left: list[str] = []
    waiting = iter(words)
    for word in waiting:
        joined = _JOINED.fullmatch(word)
        name, equals, value = (joined[1], "=", joined[2]) if joined else word.partition("=")
        if name not in kinds:
            left.append(word)
            continue
        value = value if equals else next(waiting, "")
        found[kinds[name]] = _count(name, value)
        launch.of_node += [name, value] if kinds[name] != _ALL else []
    in_all = found.get(_OF_NODE, 1) * found.get(_NODES, 1)
    if _ALL in found:
        launch.processes = found[_ALL]
    elif launch.launcher == "torchrun" or _NODES in found or (
            launch.launcher == "deepspeed" and _OF_NODE in found):
        launch.processes = in_all
    return left


def _count(name: str, value: str) -> int:
    """Return a number of processes or nodes; of ``1:4``, or 1-4, the greatest."""
    number = re.split("[:-]", value)[-1]
    if not (number.isascii() and number.isdigit() and 1 <= int(number[:9]) <= MAX_WORLD_SIZE
            and len(number) < 9):
        hint = "; write its value" if "$" in value else ""
        raise UsageError(f"{name} {shortened(value)}: is no number from 1 to "
                         f"{MAX_WORLD_SIZE}{hint}")
    return int(number)


def _without_settings(words: Sequence[str], env: dict[str, str]) -> list[str]:
    """Return the words without settings of variables, which ``env`` gets.

    ``A=1`` alone, ``-x A=1`` of Open MPI, ``-genv A 1`` of MPICH, ``--export=ALL,A=1`` of srun.
    """
    left: list[str] = []
    waiting = iter(words)
    for word in waiting:
        if word in ("-genv", "-env"):
            env[next(waiting, "")] = next(waiting, "")
        elif word == "-x":
            exported = next(waiting, "")
            left += [] if _is_set(exported, env) else [word, exported]
        elif word.startswith("--export="):
            parts = word.removeprefix("--export=").split(",")
            passed = [part for part in parts if not _is_set(part, env)]
            left += [f"--export={','.join(passed)}"] if passed else []
        elif (left and left[-1].startswith("-")) or not _is_set(word, env):
            left.append(word)
    return left


def _is_set(text: str, env: dict[str, str]) -> bool:
    """Take a setting of a variable; return whether it is one."""
    name, _, value = text.partition("=")
    if _SETTING.fullmatch(text):
        env[name] = value
        return True
    return False
