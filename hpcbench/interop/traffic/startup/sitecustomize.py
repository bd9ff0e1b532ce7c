"""Writes torch's flight records of a rank when it ends, and on SIGURG; `hpcbench record` puts it
first on PYTHONPATH.

It runs in any Python of the job, before the program: standard library only, torch is not imported.
A process is a rank once it has called ``init_process_group``; others write nothing. A failure
here costs the record, never the program.

What ends a process without Python (a signal, exec, abort) ends it as ever: no handler is put in
its way. Then ``rank00000.started`` is left, which the record would have replaced."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.machinery
import importlib.util
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections import deque
from types import ModuleType
from typing import Any

FOLDER, COMMAND = "HPCBENCH_RECORD", "HPCBENCH_RECORD_PID"
TIMED, QUIET = "HPCBENCH_RECORD_DURATIONS", "HPCBENCH_RECORD_QUIET"
PROFILED = "HPCBENCH_RECORD_PROFILE"
"""First and last step to profile, such as 3-5; a step ends with a call of an optimizer's step."""
DEFAULT_FOLDER = "record"
CALLS, MOST_CALLS = "HPCBENCH_RECORD_CALLS", "20000"
BUFFERS = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""The ring's length; the older name is for torch before 2.10, as later ones warn of it."""
DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
MOST_RAS = 2**26
MOST_NOTES = 8
"""Jobs of at most so many ranks report all files; larger ones rank 0's, and those with losses."""
_STARTED = ".started"
ASKED = signal.SIGURG
"""The signal that asks for a record: of those that end no process by default, the one that
schedulers can send and terminals do not."""
_MODULE = "torch.distributed.distributed_c10d"
MESSAGES = {"isend": ("dst", "group_dst"), "irecv": ("src", "group_src")}
"""Functions of messages, and the names of their peer: rank of the job, rank of the group."""
SCATTERS = ("_reduce_scatter_base_", "reduce_scatter_", "reduce_scatter_tensor_coalesced_")
"""Operators of torch that every reduce_scatter ends in, those of compiled graphs among them."""
RAS, RAS_SECONDS = ("NCCL_RAS_ADDR", "localhost:28028"), 5
"""Where a thread of NCCL 2.24 or newer reports each rank's calls, and how long it asks peers."""
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


class Recorder:
    """The record of this process; it is none of a rank until groups are made."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._c10d: Any = None
        self._pid = 0
        self._rank = self._size = 0
        self._groups: dict[str, dict[str, Any]] = {}
        self._path = ""
        self._refused = False
        self._durations: list[tuple[str, int, int]] = []
        self._profiled_by = 0
        self._waking = -1
        self._ras = self._ras_diagnostics = ""
        self._messages: deque[tuple[Any, ...]] = deque(maxlen=_most_calls())
        self._messages_lost = 0
        self._scatters: deque[tuple[Any, ...]] = deque(maxlen=_most_calls())
        self._library: Any = None
        self._steps = 0
        self._profiler: Any = None
        self._lock = threading.Lock()

    def watch(self, module: ModuleType) -> None:
        """Wrap the functions that make and end groups in a module that was just imported."""
        self._c10d = module
        make, end = module.init_process_group, module.destroy_process_group

        @functools.wraps(make)
        def init_process_group(*args: Any, **given: Any) -> Any:
            try:
                result = make(*args, **given)
            except ValueError:
                if not os.environ.keys() >= {*_OF_TORCHRUN}:
                    _note(f"mpirun and srun do not set {', '.join(_OF_TORCHRUN)}, which torch "
                          "takes: set them, or start the command by torchrun")
                raise
            with _spared():
                self._begin()
            return result

        @functools.wraps(end)
        def destroy_process_group(*args: Any, **given: Any) -> Any:
            with _spared():
                self._note_groups()
            return end(*args, **given)

        for name in MESSAGES.keys() & vars(module).keys():
            setattr(module, name, self._noting(getattr(module, name), name))
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
        module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]

    def _noting(self, issue: Any, name: str) -> Any:
        """Return the function of a message, which also notes those of gloo: torch records none.

        All others, ``send`` and lists of operations among them, call it."""

        @functools.wraps(issue)
        def noting(tensor: Any, *args: Any, **given: Any) -> Any:
            began = time.time_ns()
            work = issue(tensor, *args, **given)
            if work is not None:
                with _spared():
                    self._note_message(began, name, tensor, args, given)
            return work

        return noting

    def _note_message(
        self, began: int, name: str, tensor: Any, args: tuple[Any, ...], given: dict[str, Any],
    ) -> None:
        peer, group = (*args, None, None)[:2]
        group = given.get("group", group) or self._c10d.group.WORLD
        world = self._c10d._world
        if tensor.device.type != "cpu" or "gloo" not in str(world.pg_map.get(group, ("",))[0]):
            return
        known = given.get(MESSAGES[name][1])
        if known is None:
            peer = given.get(MESSAGES[name][0], peer)
            if peer is None:  # from any rank
                return
            known = self._c10d.get_group_rank(group, peer)
        self._messages_lost += len(self._messages) == self._messages.maxlen
        self._messages.append((began, name == "isend", str(world.pg_names.get(group, "")), known,
                               tensor.numel(), str(tensor.dtype).rpartition(".")[2]))

    def _watch_scatters(self) -> None:
        """Note each reduce_scatter: gloo makes all_reduces of it, and torch records those.

        BackendSelect comes before the kernels of all devices and has none of its own here. Passing
        a call on releases Python's lock, which gloo's threads need, too."""
        import torch

        if self._library is not None or not self._has("gloo"):
            return
        library = torch.library.Library("c10d", "IMPL")
        key = torch._C.DispatchKey.BackendSelect
        behind = torch._C._dispatch_keyset_full_after(key)
        for name in SCATTERS:
            issue = getattr(torch.ops.c10d, name).default.redispatch
            library.impl(name, self._scattering(name, issue, behind), key.name, with_keyset=True)
        self._library = library

    def _scattering(self, name: str, issue: Any, behind: Any) -> Any:
        """Return the kernel of a reduce_scatter that notes it and calls torch's own."""

        def scattering(keys: Any, outputs: Any, inputs: Any, group: Any, *more: Any) -> Any:
            began = time.time_ns()
            result = issue(keys & behind, outputs, inputs, group, *more)
            with _spared():
                self._note_scatter(name, began, outputs, inputs, group)
            return result

        return scattering

    def _note_scatter(self, name: str, began: int, outputs: Any, inputs: Any, group: Any) -> None:
        """Note the time that has the entries, then of each call their number and its elements."""
        ended = time.time_ns()
        if name == SCATTERS[0]:
            outputs, inputs = [outputs], [inputs]
        parts = [one if isinstance(one, (list, tuple)) else [one] for one in inputs]
        calls = [*map(lambda given, result: (
            len(given), sum(one.numel() for one in given), result.numel()), parts, outputs)]
        group = self._c10d.ProcessGroup.unbox(group)
        self._scatters.append((began, ended, str(group.group_name), calls))

    def _begin(self) -> None:
        """Take this process for a rank."""
        self._rank, self._size = self._c10d.get_rank(), self._c10d.get_world_size()
        self._note_groups()
        if self._pid == os.getpid():
            return
        self._pid, self._path = os.getpid(), ""  # a fork of a rank may become one itself
        self._mark_start()
        self._answer_signals()
        with contextlib.suppress(AttributeError):  # of an old torch: the reader says so
            self._watch_scatters()
        if os.environ.get(TIMED):
            self._start_durations()
        if steps := os.environ.get(PROFILED):
            self._follow_steps(*map(int, steps.split("-")))
        util = sys.modules.get("multiprocessing.util")
        if util and sys.modules["multiprocessing"].parent_process():  # ends without atexit
            util.Finalize(None, self.write_at_end, exitpriority=-100)

    def _mark_start(self) -> None:
        """Leave word of a rank that may not come to write; a disk that refuses it is told now."""
        try:
            os.makedirs(self._folder, exist_ok=True)
            with _whole(self._started()) as part, open(part, "w", encoding="utf-8") as stream:
                stream.write(json.dumps(self._head("start")))
        except OSError as error:
            self._refused = True
            _note(f"rank {self._rank}: {self._folder} takes no record: {error.strerror}; the "
                  "program goes on, and its end tries again")

    def _started(self) -> str:
        return os.path.join(self._folder, f"rank{self._rank:05}{_STARTED}")

    def _head(self, reason: str) -> dict[str, Any]:
        return {"format": "hpcbench.record", "version": 1, "rank": self._rank,
                "world_size": self._size, "host": os.uname().nodename, "pid": os.getpid(),
                "reason": reason}

    def _note_groups(self) -> None:
        world = getattr(self._c10d, "_world", None)
        if world is None:
            return
        for group, ranks in list(world.pg_group_ranks.items()):
            name = str(world.pg_names.get(group, ""))
            in_order = sorted(ranks, key=ranks.__getitem__)
            self._groups[name] = {
                "ranks": in_order, "description": str(getattr(group, "group_desc", "")),
                "backend": str(world.pg_map.get(group, ("", None))[0])}

    def _start_durations(self) -> None:
        """Have torch's profiler note ranges of the user's scope alone, which gloo's calls are."""
        import torch
        from torch._C._profiler import ProfilerActivity, RecordScope

        config = torch.autograd.profiler.profile(use_kineto=True).config()
        activities = {ProfilerActivity.CPU}
        torch.autograd._prepare_profiler(config, activities)
        torch.autograd._enable_profiler(config, activities, {RecordScope.USER_SCOPE})
        self._profiled_by = threading.get_ident()

    def _follow_steps(self, first: int, last: int) -> None:
        """Profile from the end of the step before the first to the end of the last, each marked."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def after_step(*_: Any) -> None:
            self._steps += 1
            with _spared():
                if self._steps == first - 1:
                    self._start_profile()
                elif self._steps == last:
                    self._end_profile()
                elif self._profiler is not None:
                    self._profiler.step()

        register_optimizer_step_post_hook(after_step)
        if first == 1:
            self._start_profile()

    def _start_profile(self) -> None:
        import torch

        profiler = torch.profiler.profile(  # only a schedule has torch mark steps: ProfilerStep#3
            schedule=lambda step: torch.profiler.ProfilerAction.RECORD)
        profiler.step_num = self._steps + 1
        profiler.start()  # raises where the program profiles itself
        self._profiler = profiler

    def _end_profile(self) -> None:
        """Write the profile, also one that the end of the program cut short."""
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()
            path = self._free_path(os.path.join(self._folder, "profile"))
            with _whole(path) as part:
                profiler.export_chrome_trace(part)
            _note(f"rank {self._rank}: profile to step {self._steps} in {path}")

    def _end_durations(self) -> None:
        if self._profiled_by != threading.get_ident():
            return
        import torch

        self._profiled_by = 0
        self._durations = [
            (event.name(), event.start_ns(), event.duration_ns())
            for event in torch.autograd._disable_profiler().events()
            if ":" in event.name()]

    def _answer_signals(self) -> None:
        """Write on SIGURG, also while the main thread waits in a collective.

        Python calls a handler between its own instructions only; the byte in the pipe comes
        immediately. A handler of the program's own stays."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(ASKED) is signal.SIG_DFL:
            signal.signal(ASKED, lambda *_: None)
            signal.siginterrupt(ASKED, False)  # calls of libraries go on
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if before not in (-1, self._waking):  # an event loop's
            signal.set_wakeup_fd(before)
            _note("the program has an event loop: SIGURG writes no record")
            return
        self._waking = writing
        threading.Thread(target=self._wait_for_signals, args=(reading,), daemon=True,
                         name="hpcbench record").start()

    def _wait_for_signals(self, reading: int) -> None:
        while data := os.read(reading, 64):
            if ASKED in data and self._pid == os.getpid():
                with _spared():
                    self._write(ASKED.name)
                    if self._has("nccl") and _is_first_of(_LOCAL_RANKS):
                        self._ras = ask_ras()
                        self._write(ASKED.name)
                        self._ras_diagnostics = ask_ras("DIAGNOSTICS", "text")
                        self._write(ASKED.name)

    def _has(self, library: str) -> bool:
        return any(library in one["backend"] for one in self._groups.values())

    def write_at_end(self) -> None:
        """Write the record of a rank; report it where the command itself has none."""
        with _spared():
            if self._pid == os.getpid():
                self._pid = -1  # processes of multiprocessing may end in two ways
                self._end_durations()
                with _spared():
                    self._end_profile()
                if os.environ.get(PROFILED) and self._steps == 0:
                    _note(f"rank {self._rank}: no optimizer's step was called: no step ended")
                self._note_groups()
                try:
                    self._say(*self._write("exit"))
                except OSError:
                    if not self._refused:  # else it was told at the start
                        raise
            elif self._pid == 0 and os.environ.get(COMMAND) == str(os.getpid()) and (
                    _is_first_of(_RANKS)) and (
                    not _has_records(self._folder)):
                _note("no process of this command opened a group by torch.distributed's "
                      "init_process_group: nothing is recorded")

    def _write(self, reason: str) -> tuple[int, int, float]:
        """Write the file; return calls, those that the ring lost, and the seconds it took."""
        began = time.perf_counter()
        with self._lock:
            library = self._c10d.torch._C._distributed_c10d
            dumps = [_text(getattr(library, name)()) for name in DUMPS if hasattr(library, name)]
            head = {**self._head(reason), "torch": str(self._c10d.torch.__version__),
                    "groups": self._groups, "durations": self._durations, "ras": self._ras,
                    "ras_diagnostics": self._ras_diagnostics,
                    "messages": [*self._messages], "messages_lost": self._messages_lost,
                    "scatters": [*self._scatters] if self._library else None}
            path = self._path or self._free_path(self._folder)
            with _whole(path) as part, open(part, "w", encoding="utf-8") as stream:
                stream.write(f"{json.dumps(head)[:-1]}, \"dumps\": [\n{', '.join(dumps)}\n]}}\n")
            self._path = path
            with contextlib.suppress(OSError):
                os.unlink(self._started())
        numbers = [sorted(map(int, re.findall(r'"record_id":\s*(\d+)', dump))) for dump in dumps]
        lost = sum(found[-1] + 1 - len(found) for found in numbers if found)
        lost += self._messages_lost
        return sum(map(len, numbers)) + len(self._messages), lost, time.perf_counter() - began

    def _free_path(self, folder: str) -> str:
        """Return a path that no other process has: a restarted rank does not write over."""
        os.makedirs(folder, exist_ok=True)
        path, number = os.path.join(folder, f"rank{self._rank:05}"), 1
        while os.path.exists(f"{path}.json" if number == 1 else f"{path}.{number}.json"):
            number += 1
        return f"{path}.json" if number == 1 else f"{path}.{number}.json"

    def _say(self, calls: int, lost: int, seconds: float) -> None:
        if lost:
            _note(f"rank {self._rank}: {calls} calls in {self._path}; {lost} earlier ones are "
                  f"lost: record fewer steps, or more with --calls {calls + lost}")
        elif not os.environ.get(QUIET) and (self._rank == 0 or self._size <= MOST_NOTES):
            _note(f"rank {self._rank}: {calls} calls in {self._path}, none lost, written in "
                  f"{seconds * 1e3:.0f} ms")


class Finder:
    """Finds torch.distributed as Python does, and calls the recorder when it is there."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's spec, whose loader calls the recorder; None for all others."""
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        with _spared():
            _switch_on(str(getattr(sys.modules.get("torch"), "__version__", "")))
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            with _spared():
                self._recorder.watch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _most_calls() -> int:
    """Return how many calls torch's ring will keep: notes of fewer would not cover it."""
    given = (os.environ.get(name, "") for name in (CALLS, *BUFFERS))
    return next((int(text) for text in given if text.isdigit() and int(text)), int(MOST_CALLS))


def _switch_on(version: str) -> None:
    """Set the recorder's variables for this torch, where the job has not; it reads them later."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    is_old = numbers is not None and (int(numbers[1]), int(numbers[2])) < (2, 10)
    wanted = os.environ.get(CALLS)
    if wanted or not any(name in os.environ for name in BUFFERS):
        os.environ[BUFFERS[is_old]] = wanted or MOST_CALLS
    os.environ.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")


@contextlib.contextmanager
def _spared() -> Any:
    """Let no fault of the record reach the program."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        _note(f"no record of this process: {type(error).__name__}: {error}")


@contextlib.contextmanager
def _whole(path: str) -> Any:
    """Yield a name beside to write to; it becomes ``path`` if the block ends well, else nothing."""
    part = f"{path}.part{os.getpid()}"
    try:
        yield part
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)


def _note(text: str) -> None:
    with contextlib.suppress(Exception):
        line = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
        sys.stderr.write(f"hpcbench: {line}\n")
        sys.stderr.flush()


def _text(dump: Any) -> str:
    return dump.decode("utf-8", "replace") if isinstance(dump, bytes) else str(dump)


def _is_first_of(names: tuple[str, ...]) -> bool:
    """Return whether the first of these variables that is set has 0; also if none is."""
    return next((os.environ[name] for name in names if name in os.environ), "0") == "0"


def ask_ras(query: str = "VERBOSE STATUS", form: str = "json") -> str:
    """Return what NCCL's RAS answers of all its ranks; "" where it does not answer.

    Protocol: lines, of NCCL's src/ras/client.cc. Forms need NCCL 2.28, ``DIAGNOSTICS`` 2.31."""
    host, _, port = os.environ.get(*RAS).rpartition(":")
    with contextlib.suppress(OSError, ValueError), socket.create_connection(
            (host.strip("[]"), int(port)), RAS_SECONDS) as peer, peer.makefile("rwb") as stream:
        peer.settimeout(4 * RAS_SECONDS)
        for request, answer in (("CLIENT PROTOCOL 2", b"SERVER PROTOCOL"), (
                f"TIMEOUT {RAS_SECONDS}", b"OK"), (f"SET FORMAT {form}", b"OK")):
            stream.write(f"{request}\n".encode())
            stream.flush()
            if not stream.readline(200).startswith(answer):
                return ""
        stream.write(f"{query}\n".encode())
        stream.flush()
        told = stream.read(MOST_RAS).decode("utf-8", "replace")
        return "" if told.startswith("ERROR") else told
    return ""


def _has_records(folder: str) -> bool:
    return os.path.isdir(folder) and any(
        name.startswith("rank") and name.endswith(".json") for name in os.listdir(folder))


def _start() -> None:
    if os.environ.get(TIMED) or os.environ.get(PROFILED):
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it prints each start of the profiler
    recorder = Recorder(os.environ.get(FOLDER) or DEFAULT_FOLDER)
    sys.meta_path.insert(0, Finder(recorder))
    atexit.register(recorder.write_at_end)
    end = os._exit

    @functools.wraps(end)
    def _exit(status: int) -> None:  # runs nothing that is registered
        recorder.write_at_end()
        end(status)

    os._exit = _exit  # type: ignore[assignment]


def _run_the_one_behind() -> None:
    """Run the sitecustomize that Python would have found without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [one for one in sys.path if os.path.abspath(one or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    with _spared():
        _start()
    _run_the_one_behind()
