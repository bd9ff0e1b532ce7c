"""One of nccl-tests' programs, measured by hpcbench: the same options, text and exit codes.

Without a launcher it starts its ranks itself. Standard output of rank 0 has the text and nothing
else."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcbench.__main__ import end_with
from hpcbench.errors import UsageError
from hpcbench.interop.compat.options import OPTIONS, NcclTestsOptions, parse, to_sweep
from hpcbench.launch.launcher import announced_rank, announced_size
from hpcbench.operations.gpu_nodes import has_gpu
from hpcbench.records import dataclass
from hpcbench.texts import Verbosity, path_of, say, say_all, to_json
from hpcbench.units import plural

if TYPE_CHECKING:
    from hpcbench.interop.formats.export.nccl_tests import PerfTable
    from hpcbench.launch.launcher import StopRequests
    from hpcbench.launch.session import Session
    from hpcbench.launch.template_process import AnyTemplate

BAD_USAGE, FAILED, TIMEOUT, NOT_MEASURED, BAD_RESULTS = 255, 1, 4, 5, 7
"""Exit codes of nccl-tests: -1, then testInternalError to testNumResults of its src/common.h."""
LEAST = "NCCL_TESTS_MIN_BW"
KEPT_IN = "HPCBENCH_OUTPUT"
"""Variable with the folder that keeps the results; without it they are gone with the program."""
_FIRST_GPU = "NCCL_TESTS_DEVICE"
_ROOT_MAY = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_QUICK: Mapping[str, Mapping[str, Any]] = {
    "measure": {"order": "planned", "canary": False, "noise_check_s": 0.2},
    "telemetry": {"without": "all"}, "output": {"plots": False, "report": False}}
"""Settings that leave out what nccl-tests does not have, and what would only take time: a short
look at the cores says whether others use them."""


def main(program: str, argv: Sequence[str] | None = None) -> None:
    """Run the program and end with its exit code."""
    words = sys.argv[1:] if argv is None else argv
    end_with(lambda: run(program, words, os.environ), is_job=True)


def run(program: str, words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Return the exit code of the program; without a launcher, become one that starts it."""
    try:
        options, least = parse(program, words), _least_busbw(environ)
    except UsageError as error:
        say_all(error, sys.stderr)
        return BAD_USAGE
    if options.is_help:
        if announced_rank(environ) == 0:
            say_all(help_text(program))
        return 0
    if announced_size(environ) is None:
        _start_here(options, words, environ)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the run can take it as a request
    sys.stderr = sys.__stderr__
    from hpcbench.launch.template_process import early_template
    from hpcbench.measurement.process import no_collection_of_modules

    with early_template(environ) as early:
        with no_collection_of_modules():
            from hpcbench.run import as_job

        job = _Job(options, (program, *words), least, early)
        return as_job(job.measured, Verbosity.QUIET)


def _least_busbw(environ: Mapping[str, str]) -> float | None:
    text = environ.get(LEAST)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{LEAST}={text}: no number of GB/s") from None


def help_text(program: str) -> str:
    lines = [f"USAGE: {program} [OPTIONS]: nccl-tests' program, measured by hpcbench",
             "Without a launcher it starts a process for each GPU of this machine, or -t x -g.", ""]
    for option in OPTIONS:
        default = f" [{option.default}]" if option.default != "" else ""
        typed = f"-{option.letter}, --{option.name} {option.form}"
        lines.append(f"  {typed:38} {option.meaning}{default}")
    lines += ["  -h, --help", "", f"{LEAST}=GB/s: exit code {BAD_RESULTS} below 0.9 of it. "
              f"{KEPT_IN}=DIR keeps the results of hpcbench there."]
    return "".join(f"{line}\n" for line in lines)


def _start_here(
    options: NcclTestsOptions, words: Sequence[str], environ: Mapping[str, str],
) -> None:
    """Become mpirun with a rank for each GPU that torch sees here, or as many as were typed.

    Where that is one rank, go on as that rank."""
    from hpcbench.launch.session import RANKS_WITHOUT_GPUS, exec_mpirun

    ranks = options.ranks_per_process
    if not options.given & {"t", "g"}:
        ranks = _visible_gpus() if has_gpu(environ) else RANKS_WITHOUT_GPUS
    if os.geteuid() == 0:  # as health checks are: Open MPI would refuse
        environ = {**_ROOT_MAY, **environ}
    if ranks > 1:
        exec_mpirun(ranks, words, environ, module=f"hpcbench.compat.{options.program}")


def _visible_gpus() -> int:
    from hpcbench.launch.probe import probe_here

    return max(len(probe_here()["gpu_memory_bytes"]), 1)


@dataclass(frozen=True, slots=True)
class _Job:
    """The work of all ranks; ``words`` are the program and its arguments."""

    options: NcclTestsOptions
    words: tuple[str, ...]
    least_busbw: float | None
    early: AnyTemplate | None

    def measured(self, session: Session, stop: StopRequests) -> int:
        """Measure into a folder, print the text on rank 0, and return the exit code of all."""
        from hpcbench.launch.session import on_root
        from hpcbench.resume import RunRequest
        from hpcbench.run import run as run_sweep

        comm = session.comm
        prepared = on_root(comm, lambda: self._prepared(comm.size))
        sweep, folder = Path(prepared["sweep"]), Path(prepared["folder"])
        request = RunRequest(sweep, (), folder, verbosity=Verbosity.QUIET)
        with _only_for_now(sweep.parent, folder) if comm.rank == 0 else contextlib.nullcontext():
            with _standard_output_is_ours():
                run_sweep(session, request, stop, self.early)
            code = on_root(comm, lambda: self._printed(folder, tuple(prepared["remarks"])))
        return int(code)

    def _prepared(self, ranks: int) -> dict[str, Any]:
        """Write the sweep; return its path, the folder for results, and remarks."""
        file = self.options.text("J")
        if file and not path_of(file).absolute().parent.is_dir():
            raise UsageError(f"{self.options.program}: -J {file}: its folder does not exist")
        on_gpu = has_gpu(os.environ)
        content, remarks = to_sweep(self.options, ranks, "nccl" if on_gpu else "gloo")
        for section, keys in _QUICK.items():
            content[section] = {**content.get(section, {}), **keys}
        scratch = Path(tempfile.mkdtemp(prefix="hpcbench-"))
        sweep, folder = scratch / "sweep.json", scratch / "run"
        sweep.write_text(to_json(content), encoding="utf-8")
        if kept := os.environ.get(KEPT_IN):
            folder = path_of(kept).absolute() / (
                f"{self.options.program}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
        return {"sweep": str(sweep), "folder": str(folder),
                "remarks": [*self._of_this_launch(ranks, on_gpu=on_gpu), *remarks]}

    def _of_this_launch(self, ranks: int, *, on_gpu: bool) -> Iterator[str]:
        wanted = self.options.ranks_per_process
        if not on_gpu:
            yield f"no GPU here: gloo on CPUs, {plural(ranks, 'process')}"
        if wanted not in (1, ranks):
            yield (f"-t x -g is {wanted}: no effect: each process is one rank, and the "
                   f"launcher started {ranks}")
        if _FIRST_GPU in os.environ:
            yield f"{_FIRST_GPU}: no effect: set CUDA_VISIBLE_DEVICES instead"

    def _printed(self, folder: Path, remarks: tuple[str, ...]) -> int:
        from hpcbench.interop.formats.export.cases import Exported, exported_run
        from hpcbench.interop.formats.export.nccl_tests import (
            Launched,
            own_json,
            own_table,
            own_text,
        )
        from hpcbench.interop.formats.export.write import write_target
        from hpcbench.reduce.results_file import open_results

        with open_results(folder) as results:
            run = exported_run(results)
            table = own_table(run, Launched(
                self.words, typed(self.options), remarks, self.least_busbw))
            say_all(own_text(run, table))
            if file := self.options.text("J"):
                write_target(free(path_of(file)), Exported(own_json(run, table)))
        if KEPT_IN in os.environ:
            say(f"hpcbench: results are in {folder}", sys.stderr)
        return exit_code(table)


@contextlib.contextmanager
def _only_for_now(scratch: Path, folder: Path) -> Iterator[None]:
    """Remove the folder in the end, unless an error left results in it."""
    done = False
    try:
        yield
        done = True
    finally:
        if done or not folder.is_relative_to(scratch) or not folder.exists():
            shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _standard_output_is_ours() -> Iterator[None]:
    """Discard the standard output of a run: its failures are in the text, too."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def typed(options: NcclTestsOptions) -> dict[str, int]:
    """Return the options as the keys of JSON's ``config`` that the heading shows, too."""
    number = options.number
    by = {"step_factor": number("f")} if number("f") > 1 else {"step_bytes": number("i")}
    return {"minimum_bytes": number("b"), "maximum_bytes": number("e"), **by,
            "warmup_iters": number("w"), "iterations": number("n"),
            "aggregated_iterations": number("m"), "validation": number("c"), "graph": number("G")}


def free(file: Path) -> Path:
    """Return the file, or the first of FILE.0, FILE.1, ... that is not there, as nccl-tests."""
    number, found = 0, file
    while found.exists():
        found, number = file.with_name(f"{file.name}.{number}"), number + 1
    return found


def exit_code(table: PerfTable) -> int:
    """Return the exit code that nccl-tests would end with."""
    ended = {case.item.status for case in table.bad}
    if others := ended - {"wrong"}:
        return TIMEOUT if others == {"timeout"} else FAILED
    if table.against:
        return FAILED
    if not table.cases:
        return NOT_MEASURED
    return BAD_RESULTS if ended or table.is_fast_enough is False else 0
