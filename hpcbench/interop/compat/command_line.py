"""A command line of a benchmark: its launcher, its environment, its program and their words.

A word before the program is either understood, or behind a launcher, which starts it as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from types import MappingProxyType

from hpcbench.config.axes import MAX_WORLD_SIZE
from hpcbench.errors import UsageError
from hpcbench.interop.compat import launchers, shell
from hpcbench.records import dataclass
from hpcbench.units import shortened

_SHELLS = ("bash", "sh", "dash", "ksh", "zsh")
_INSIDE = ("docker", "podman", "kubectl", "oc", "ssh", "pdsh", "nerdctl", "docker-compose")
"""Programs that start a command on another machine, with launchers of their own."""
_WRAPPERS: Mapping[str, tuple[str, int]] = MappingProxyType({
    "env": ("-u -C --unset --chdir", 0), "time": ("-f -o", 0), "nohup": ("", 0), "exec": ("", 0),
    "command": ("", 0), "setsid": ("", 0), "unbuffer": ("", 0), "stdbuf": ("-i -o -e", 0),
    "timeout": ("-k -s --kill-after --signal", 1), "nice": ("-n", 0), "ionice": ("-c -n", 0),
    "sudo": ("-u -g", 0), "taskset": ("", 1), "numactl": (
        "-N -m -C -i -p --cpunodebind --membind --physcpubind --interleave --preferred", 0)})
"""Program that runs another one -> its options with a value, and its words before the other."""
_OF_PLACE = ("nice", "ionice", "taskset", "numactl")
"""Those that a launcher starts with each rank: they stay before hpcbench."""
_PYTHON = re.compile(r"python[\d.]*")
_PRELUDE = ("cd", "export", "echo", "module", "ml", "source", ".", "set", "unset", "setenv",
            "mkdir", "pushd", "ulimit", "which", "ls")
"""Programs whose words are never commands."""
_MOST_CHARACTERS, _MOST_NESTED = 100_000, 4


@dataclass(frozen=True, slots=True)
class Program:
    """The program that is started: its name without folders, and its words."""

    name: str
    words: tuple[str, ...]


@dataclass(slots=True)
class CommandLaunch:
    """The launch of a program.

    ``kept`` are the launcher's words beside those that count processes or set variables,
    ``of_ranks`` those that hold for its number of processes alone, ``wrappers`` the words
    behind it, ``strangers`` those from the first on that is not understood. ``counts`` has the
    numbers of each role, ``reserved`` those of an allocation around it. ``left_out`` are words of
    no effect."""

    name: str = ""
    launcher: launchers.Launcher | None = None
    kept: list[str] = field(default_factory=list)
    of_ranks: list[str] = field(default_factory=list)
    wrappers: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    counts: dict[launchers.Role, set[int]] = field(default_factory=dict)
    reserved: dict[launchers.Role, set[int]] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)

    @property
    def processes(self) -> int | None:
        """Return how many processes the command starts, None: it does not say. UsageError: twice.
        """
        for numbers in (*self.counts.values(), *self.reserved.values()):
            if len(numbers) > 1:
                raise UsageError(f"{self.name}: one number is given twice, as "
                                 f"{' and '.join(map(str, sorted(numbers)))}; give it once")
        own, around = ({role: min(numbers) for role, numbers in given.items()}
                       for given in (self.counts, self.reserved))
        if self.launcher is launchers.SLURM and around and launchers.Role.RANKS not in own:
            both = own.keys() & around.keys() or (own and launchers.Role.RANKS in around)
            return None if both else _number_of(launchers.SLURM, {**around, **own}, ())
        if self.launcher is launchers.MPI and not own and {launchers.Role.RANKS,
                                                           launchers.Role.OF_NODE} & around.keys():
            return _number_of(launchers.SLURM, around, ())
        if launchers.Role.RANKS not in own and self._counts_late():
            return None
        return _number_of(self.launcher, own, self.hosts)

    def _counts_late(self) -> bool:
        """Return whether options behind a word that is not understood may be the launcher's."""
        counting = self.launcher.roles if self.launcher else ()
        return bool(self.hosts and self.strangers) or any(
            part in counting for word in self.strangers for part in (
                word[:2], word.partition("=")[0]))

    def command(self, ranks: int, *words: str) -> str:
        """Return the command that runs hpcbench on so many ranks, as a shell takes it."""
        hpcbench = ("-m", "hpcbench", "run", *words)
        head, kept = self._head(ranks), self._kept(ranks)
        if head == launchers.TORCHRUN.command:
            return shell.in_shell((*head, *kept, *hpcbench))
        return shell.in_shell((*head, str(ranks), *kept, *self.wrappers, *self.strangers,
                               "python", *hpcbench))

    def lost(self, ranks: int) -> Sequence[str]:
        """Return the words that `command` does not have."""
        kept = self._kept(ranks)
        others = (" ".join(words) for words in (self.of_ranks, self.kept)
                  if words and not set(words) <= set(kept))
        return [*self.left_out, *others]

    def _head(self, ranks: int) -> tuple[str, ...]:
        """Return the launcher before the number of ranks; torchrun's has none."""
        if self.launcher is launchers.TORCHRUN and not (self.of_ranks and ranks == self.processes):
            return launchers.MPI.command
        return (self.launcher and self.launcher.command) or launchers.MPI.command

    def _kept(self, ranks: int) -> list[str]:
        """Return the launcher's words in `command`."""
        if not self.launcher or self._head(ranks) != self.launcher.command:
            return []
        return [*(self.of_ranks if ranks == self.processes else []), *self.kept]


def _number_of(
    launcher: launchers.Launcher | None, counts: Mapping[launchers.Role, int], hosts: Sequence[str],
) -> int | None:
    """Return the processes of a launcher; None: unknown."""
    if launchers.Role.RANKS in counts:
        return counts[launchers.Role.RANKS]
    if launchers.Role.OTHER in counts or launcher is None:
        return None
    if launchers.Role.SETS in counts or launchers.Role.OF_SET in counts:
        return counts[launchers.Role.SETS] * counts[launchers.Role.OF_SET] if {
            launchers.Role.SETS, launchers.Role.OF_SET} <= counts.keys() else None
    of_node, nodes = counts.get(launchers.Role.OF_NODE), counts.get(launchers.Role.NODES)
    if launcher is launchers.TORCHRUN:
        return (of_node or 1) * (nodes or 1)
    if launcher is launchers.SLURM and nodes:
        return (of_node or 1) * nodes
    if of_node and nodes:
        return of_node * nodes
    if launcher is launchers.DEEPSPEED and of_node and "hostfile" not in hosts:
        return of_node
    if launcher is launchers.MPI and of_node and hosts and all(re.fullmatch(r"\w[\w.-]*(:\d+)?",
                                                                            host)
                                                               for host in hosts):
        return of_node * len({host.partition(":")[0] for host in hosts})
    return None


class _Reader:
    """Reads the words before a program, and takes what they say into a `CommandLaunch`."""

    def __init__(self, known: re.Pattern[str]) -> None:
        self.known, self.launch = known, CommandLaunch()
        self.program: Program | None = None

    def read(self, text: str, depth: int = 0) -> None:
        """Read the commands of a text; one of them starts the program."""
        if depth > _MOST_NESTED:
            raise UsageError(f"{_shown(text)}: shells in shells; give the inner command")
        commands = [*shell.simple_commands(text, self.launch.env)]
        chosen = [at for at, command in enumerate(commands) if self._holds_program(command)
                  and not (command.before in ("|", "|&") and at)]
        if not chosen:
            raise UsageError(
                f"{_shown(text)}: names no program that is known: all_reduce_perf and the others "
                "of nccl-tests, osu_allreduce and others of OSU, ds_bench")
        if len(chosen) > 1:
            raise UsageError(f"{shortened(commands[chosen[1]].text)}: is a second benchmark; give "
                             "one command at a time")
        for at, command in enumerate(commands):
            if at == chosen[0]:
                self._walk(command.words, depth)
                self._leave_out(command.redirections)
            else:
                self._beside(command, at > chosen[0])

    def _holds_program(self, command: shell.SimpleCommand) -> bool:
        words = command.words
        if words[:1] and words[0] in _PRELUDE or all(map(shell.SETTING.fullmatch, words)):
            return False
        return any(self._is_program(part) for word in words
                   for part in re.split(r"[\s;&|()'\"]+", word.removeprefix("--wrap=")))

    def _is_program(self, word: str) -> bool:
        return self.known.fullmatch(PurePosixPath(word).name) is not None

    def is_understood(self, word: str) -> bool:
        """Return whether a word before the program has a meaning wherever it stands."""
        name = PurePosixPath(word).name
        return self._is_program(word) or shell.SETTING.fullmatch(word) is not None or (
            _PYTHON.fullmatch(name) is not None) or name in (
            *launchers.LAUNCHERS, *launchers.ALLOCATIONS, *_SHELLS, *_INSIDE, *_WRAPPERS)

    def _beside(self, command: shell.SimpleCommand, is_later: bool) -> None:
        """Take a command before or after that of the program: what it exports, and its text."""
        first = command.words[0] if command.words else ""
        starts_ranks = first not in _PRELUDE and not command.before.startswith("|") and any(
            PurePosixPath(word).name in (*launchers.LAUNCHERS, *launchers.ALLOCATIONS)
            for word in command.words)
        if starts_ranks or first.startswith("-"):
            raise UsageError(f"{shortened(command.text)}: starts no program that is known; a "
                             "command of several lines has a \\ at the end of each")
        if first in ("export", "setenv") and not is_later:
            words = command.words[1:] if first == "export" else ["=".join(command.words[1:])]
            for word in words:
                if not self._set(word):
                    self._leave_out(f"{first} {word}")
        else:
            mark = command.before if is_later and command.before != ";" else ""
            self._leave_out(f"{mark} {command.text}".strip())

    def _leave_out(self, text: str) -> None:
        if text:
            self.launch.left_out.append(text)

    def _set(self, word: str) -> bool:
        """Take a setting of a variable; return whether it is one."""
        match = shell.SETTING.fullmatch(word)
        if match and shell.needs_shell(match[2]):
            self._leave_out(f"{word} (write its value)")
        elif match:
            self.launch.env[match[1]] = match[2]
        return match is not None

    def _walk(self, words: Sequence[str], depth: int) -> None:
        """Read the words of a command up to its program."""
        left, launch = [*words], self.launch
        while left:
            word = left.pop(0)
            name = PurePosixPath(word).name
            if self.known.fullmatch(name):
                self._end(name, left)
                return
            if name in _INSIDE:
                raise UsageError(f"{name}: starts the benchmark inside something else; give the "
                                 "command that runs there")
            if name in launchers.LAUNCHERS or name in launchers.ALLOCATIONS:
                self._launcher(name, left, depth)
                if self.program:
                    return
            elif name in _SHELLS and any(re.fullmatch("-[a-z]*c", one) for one in left[:-1]):
                self._shell(left, depth)
                return
            elif launch.strangers:
                launch.strangers.append(word)
            elif name in _WRAPPERS:
                self._wrapper(word, name, left)
            elif _PYTHON.fullmatch(name):
                while left and left[0] in ("-u", "-m", "-O", "-E", "-s"):
                    left.pop(0)
            elif not self._set(word):
                self._stranger(word, left)
                launch.strangers.append(word)
        raise UsageError(f"{_shown(' '.join(words))}: the words before the program cannot be told "
                         "from its name; give the command without them")

    def _end(self, name: str, words: Sequence[str]) -> None:
        if ":" in words or any(map(self._is_program, words)):
            raise UsageError(f"{name}: several programs are started; give one command at a time")
        self.program = Program(name, tuple(words))

    def _stranger(self, word: str, left: Sequence[str]) -> None:
        """Raise UsageError for a word that is not understood, unless a launcher starts it."""
        if self.launch.launcher is None:
            raise UsageError(f"{shortened(word)}: is not understood before a program, so the ranks "
                             f"are unknown; known launchers: {', '.join(launchers.LAUNCHERS)}")
        if ":" in (word, *left):
            raise UsageError(f"{shortened(word)}: several programs are started; give one command "
                             "at a time")

    def _shell(self, left: list[str], depth: int) -> None:
        """Read the text behind ``bash -c``."""
        while not re.fullmatch("-[a-z]*c", left[0]):
            option = left.pop(0)
            if option in ("-o", "-O"):
                left.pop(0)
            elif not option.startswith("-"):
                raise UsageError(f"{shortened(option)}: is not understood behind a shell")
        if len(left) < 2:
            raise UsageError("bash -c: has no command")
        self.read(left[1], depth + 1)

    def _wrapper(self, word: str, name: str, left: list[str]) -> None:
        """Take a program that runs another, with its options and words."""
        with_value, n_words = _WRAPPERS[name]
        taken = [word]
        while left and left[0].startswith("-") and len(left[0]) > 1:
            taken.append(left.pop(0))
            if taken[-1] in with_value.split() and left:
                taken.append(left.pop(0))
        taken += [left.pop(0) for _ in range(min(n_words, len(left)))]
        if name in ("env", "sudo"):
            while left and self._set(left[0]):
                left.pop(0)
        if name in _OF_PLACE and self.launch.launcher:
            self.launch.wrappers += taken
        elif taken != ["env"]:
            self._leave_out(" ".join(taken))

    def _launcher(self, name: str, left: list[str], depth: int) -> None:
        """Take a launcher, or an allocation, and its options."""
        launch, is_allocation = self.launch, name in launchers.ALLOCATIONS
        if launch.launcher or (is_allocation and launch.name):
            raise UsageError(f"{name}: is started by {launch.name}; give the command of one "
                             "launcher")
        launcher = launchers.ALLOCATIONS[name] if is_allocation else launchers.LAUNCHERS[name]
        launch.name = name
        while left and left[0] in launcher.verbs:
            left.pop(0)
        options = _Options(self, launcher, left)
        if is_allocation:
            outer, inner = CommandLaunch(name, env=launch.env), launch
            self.launch = outer
            options.read()
            self.launch = inner
            inner.reserved = outer.counts
            inner.left_out += [name, *outer.kept, *outer.of_ranks]
            if options.wrapped:
                self.read(options.wrapped, depth + 1)
            return
        launch.launcher = launcher
        options.read()


class _Options:
    """The options of a launcher at the beginning of ``left``, which `read` takes away."""

    def __init__(self, reader: _Reader, launcher: launchers.Launcher, left: list[str]) -> None:
        self.reader, self.launcher, self.left = reader, launcher, left
        self.unclear = self.wrapped = ""
        self.may_be_value = False

    def read(self) -> None:
        """Take all options; an unknown one stays as it stands, with the word behind it."""
        left, reader = self.left, self.reader
        while left:
            word = left[0]
            if word == ":":
                raise UsageError("the launcher starts several programs (:); give one command at a "
                                 "time")
            if shell.needs_shell(word) and not word.startswith("-"):  # $MPI_OPTIONS
                reader.launch.kept.append(left.pop(0))
            elif not word.startswith("-") or word == "-":
                if not self.may_be_value or reader.is_understood(word):
                    return
                reader.launch.kept.append(left.pop(0))
                self.may_be_value = False
            else:
                left.pop(0)
                self.may_be_value = False
                if word == "--":
                    return
                for name, joined, typed in self._divided(word):
                    self._take(name, joined, typed)

    def _divided(self, word: str) -> Iterator[tuple[str, str | None, str]]:
        """Yield each option of a word, and a value that is joined with it: ``-n16``, ``-lN2``."""
        launcher = self.launcher
        name, equals, value = word.partition("=")
        if word.startswith("--") or not launcher.long:
            joined = re.fullmatch(r"-+(n|np|N|c|ppn)(\d+)", word)
            if joined and not launcher.long:
                yield f"-{joined[1]}", joined[2], f"-{joined[1]}"
            else:
                yield launcher.name_of(name), value if equals else None, name
            return
        if launcher.n_values(word) is not None or launcher.n_values(name) is None and len(
                word) > 2 and launcher.n_values(word[:2]) is None:
            yield word, None, word
            return
        rest = word[1:]
        while rest:
            letter, rest = f"-{rest[0]}", rest[1:]
            if launcher.n_values(letter) == 0 and rest:
                yield letter, None, letter
            else:
                yield letter, rest.removeprefix("=") if rest else None, letter
                return

    def _take(self, name: str, joined: str | None, typed: str) -> None:
        launch, launcher = self.reader.launch, self.launcher
        if name == "--wrap" and launcher is launchers.SLURM:
            self.wrapped = self._values(1, joined, typed)[0]
        elif name in launcher.settings:
            self._setting(name, joined, typed)
        elif name in launcher.roles:
            self._role(launcher.roles[name], joined, typed)
        else:
            n_values = launcher.n_values(name)
            values = self._values(n_values or 0, joined, typed)
            if n_values is None:
                self._refuse_shortened(typed)
                self.may_be_value = joined is None
                self.unclear = self.unclear or typed * self.may_be_value
            if name in ("-host", "-H") and launcher is launchers.MPI:
                launch.hosts += values[0].split(",")
            if launcher is launchers.DEEPSPEED and name in ("-H", "--hostfile", "-i", "--include"):
                launch.hosts.append("hostfile")
            if name == "-map-by" and (ppr := launchers.PPR.fullmatch(values[0])):
                role = launchers.Role.OF_NODE if ppr[2].lower() == "node" else launchers.Role.OTHER
                launch.counts.setdefault(role, set()).add(_count(typed, ppr[1]))
                launch.of_ranks += _spelled(typed, joined, values)
            else:
                launch.kept += _spelled(typed, joined, values)

    def _refuse_shortened(self, typed: str) -> None:
        """Raise UsageError for a beginning of an option that counts ranks."""
        counting = [name for name,
                    role in self.launcher.roles.items() if role is not launchers.Role.SHAPE]
        full = [name for name in counting if len(typed) > 2 and name.startswith(typed)]
        if full and self.launcher.long:
            raise UsageError(f"{typed}: is not understood; write {' or '.join(full)}")

    def _role(self, role: launchers.Role, joined: str | None, typed: str) -> None:
        launch = self.reader.launch
        if self.unclear and role is not launchers.Role.SHAPE:
            raise UsageError(f"{typed}: may be an option of {self.unclear}, which is not "
                             "understood; give the command without that")
        n_values = self.launcher.n_values(self.launcher.name_of(typed))
        values = self._values(1 if n_values is None else n_values, joined, typed)
        if role is not launchers.Role.SHAPE:
            launch.counts.setdefault(role, set()).add(
                _count(typed, values[0]) if values else 1)
        if role is not launchers.Role.RANKS:
            launch.of_ranks += [typed, *values]

    def _values(self, number: int, joined: str | None, typed: str) -> list[str]:
        """Return the values of an option. Raises UsageError where there are none left."""
        if joined is not None:
            return [joined]
        if len(self.left) < number:
            raise UsageError(f"{typed}: has no value")
        return [self.left.pop(0) for _ in range(number)]

    def _setting(self, name: str, joined: str | None, typed: str) -> None:
        """Take the variables of ``-x A=1``, ``-genv A 1`` and ``--export=ALL,A=1``."""
        launch, reader = self.reader.launch, self.reader
        first, = self._values(1, joined, typed)
        if name == "--export":
            passed = [part for part in first.split(",") if not reader._set(part)]
            launch.kept += [f"--export={','.join(passed)}"] if passed else []
        elif "=" not in first and name in ("-genv", "-env") and self.launcher is launchers.MPI:
            value, = self._values(1, None, typed)
            reader._set(f"{first}={value}")
        elif not reader._set(first):
            launch.kept += _spelled(typed, joined, [first])


def _spelled(typed: str, joined: str | None, values: Sequence[str]) -> list[str]:
    """Return an option and its values as they were written."""
    if joined is None:
        return [typed, *values]
    return [f"{typed}={joined}" if len(typed) > 2 else f"{typed}{joined}"]


def split_command(text: str, known: re.Pattern[str]) -> tuple[Program, CommandLaunch]:
    """Return the program in a command line whose name matches ``known``, and its launch.

    Raises UsageError for text that a shell would not take, where there is no program or several,
    and for words of which it is not clear how many ranks they start."""
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(f"the command has {len(text):,} characters, more than "
                         f"{_MOST_CHARACTERS:,}")
    reader = _Reader(known)
    reader.read(text)
    assert reader.program is not None
    return reader.program, reader.launch


def _shown(text: str) -> str:
    return shortened(" ".join(text.split())) or "the command is empty"


def _count(name: str, value: str) -> int:
    """Return a number of processes or nodes, also of ``4:4`` and 4-4. Raises UsageError."""
    numbers = dict.fromkeys(re.split("[:-]", value))
    number, *others = numbers
    if others:
        raise UsageError(f"{name} {shortened(value)}: is a range, so the number of ranks is open; "
                         "write one number")
    if not (number.isascii() and number.isdigit() and 1 <= int(number[:9]) <= MAX_WORLD_SIZE
            and len(number) < 9):
        hint = "; write its value" if shell.needs_shell(value) else ""
        raise UsageError(f"{name} {shortened(value)}: is no number from 1 to "
                         f"{MAX_WORLD_SIZE}{hint}")
    return int(number)
