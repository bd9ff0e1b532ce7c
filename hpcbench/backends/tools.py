"""What implementations and strategies need of a machine beside devices: modules, and compilers.

Asked only where a plan has one that needs it: trying a compiler takes 0.3 s.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hpcbench.backends.availability import RankFacts, first_reason, gpu_indices, of_rocm
from hpcbench.errors import how_to_install
from hpcbench.kinds.registry import spec_of
from hpcbench.kinds.unusable import UnusableRunner
from hpcbench.plan.case import Case
from hpcbench.plan.workload import Gpu

COMPILER = "compiler"
"""The need of implementations that compile; every other need is a module (`Workload.needs`)."""
_RUNNER = "runner "
"""Before the name of a kind of a plug-in."""
_EXTRAS = {
    **dict.fromkeys(("peft", "bitsandbytes", "transformers"), how_to_install("models")),
    "transformer_engine": "pip install transformer-engine[pytorch]",
    "nvfuser_direct": "pip install nvfuser-cuXXX-torchYY, for the CUDA and torch there are",
}
"""Module -> how to install it: of ours with the versions that go together."""
_TRIAL_TIMEOUT_S = 60.0
_SOURCE = "#include <Python.h>\nint main(void) { return 0; }\n"


def wanted_tools(cases: Iterable[Case]) -> list[str]:
    """Return what the machine must have: modules, ``compiler``, and runners of plug-ins' kinds."""
    runs = [case for case in cases if not case.skip]
    return sorted({need for case in runs for need in case.workload.needs()}
                  | {_RUNNER + case.kind for case in runs if spec_of(case.kind).is_plugin})


def tool_facts(wanted: Iterable[str]) -> dict[str, Any]:
    """Return why each tool cannot be used here, or None if it can, as plain JSON values.

    A module: the reason; ``compiler``: {device: reason}, what torch.compile and
    Triton start for code of that device. A module is looked for, not imported; a runner is made.
    """
    return {name: _compilers() if name == COMPILER else
            _no_runner(name.removeprefix(_RUNNER)) if name.startswith(_RUNNER) else
            _no_module(name) for name in wanted}


def untooled(case: Case, device: str, ranks: Sequence[RankFacts]) -> str | None:
    """Return why what is measured cannot run on ``device`` on these ranks, or None if it can."""
    work = case.workload
    reasons = [rank.facts.get("tools", {}).get(_RUNNER + case.kind) for rank in ranks]
    if reason := first_reason(ranks, reasons):
        return f"kind {case.kind} cannot be used: {reason}"
    if work.only_on() and device not in work.only_on():
        return f"{work.implementer} runs on {' or '.join(work.only_on())} only, not on {device}"
    if work.only_on() == ("cuda",) and (
            reason := first_reason(ranks, [_for_rocm(rank.facts) for rank in ranks])):
        return f"{work.implementer}: {reason}"
    for need in work.needs():
        found = [rank.facts["tools"][need] for rank in ranks]
        reasons = [each[device] for each in found] if need == COMPILER else found
        if reason := first_reason(ranks, reasons):
            return f"{work.implementer}: {reason}"
    return _unfit_gpu(case, ranks) if device == "cuda" else None


def _unfit_gpu(case: Case, ranks: Sequence[RankFacts]) -> str | None:
    """Return what the GPU of some rank is too old, too small or too large for, or None."""
    work, indices = case.workload, gpu_indices(ranks)
    if least := work.least_capability():
        reasons = [_older(rank, index, least) for rank, index in zip(ranks, indices, strict=True)]
        if reason := first_reason(ranks, reasons):
            return f"{work.implementer} of {work.dtype} needs {reason}"
    reasons = [None if index is None else work.unfit_for(
        Gpu(_told(rank, "multiprocessors", index), _told(rank, "cache_bytes", index)))
        for rank, index in zip(ranks, indices, strict=True)]
    reason = first_reason(ranks, reasons)
    return reason and f"{work.implementer}: {reason}"


def _told(rank: RankFacts, what: str, index: int) -> int | None:
    """Return a number of one of the GPUs that a rank sees, None where it is not told."""
    numbers: Sequence[int | None] = rank.facts["cuda"].get(what, ())
    return numbers[index] if numbers else None


def _for_rocm(facts: Mapping[str, Any]) -> str | None:
    """Return why what runs on cuda alone does not here: it is written for NVIDIA's GPUs."""
    return (f"written for NVIDIA GPUs, and torch {facts['versions']['torch']} is a build for ROCm"
            if of_rocm(facts) else None)


def _older(rank: RankFacts, index: int | None, least: tuple[int, ...]) -> str | None:
    """Return what the rank's GPU lacks for a compute capability, or None; of ROCm all."""
    if of_rocm(rank.facts):
        return "CUDA: on ROCm it was never tried"
    if index is None or tuple(own := rank.facts["cuda"]["capabilities"][index]) >= least:
        return None
    return (f"a GPU of compute capability {'.'.join(map(str, least))} or newer; "
            f"{rank.facts['cuda']['names'][index]} has {'.'.join(map(str, own))}")


def _no_runner(kind: str) -> str | None:
    runner = spec_of(kind).runner()
    return runner.problem if isinstance(runner, UnusableRunner) else None


def _no_module(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:  # of a package around it
        return f"the Python module {name} cannot be found: {error}"
    package, dot, _ = name.partition(".")
    missing = (f"this {package} has no module {name}: a newer one is needed" if dot else
               f"the Python module {name} is not installed: "
               f"{_EXTRAS.get(name, f'pip install {name}')}")
    return None if spec else missing


def _compilers() -> dict[str, str | None]:
    """Return what is wrong with the compilers of code for each device.

    For the CPU torch.compile starts $CXX, else g++ (torch._inductor.config, ``cpp.cxx``). For CUDA
    it generates Triton, and Triton starts $CC, else gcc or clang (triton.runtime.build).
    """
    missing = _no_module("triton")
    c_compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "gcc"
    return {"mps": "torch.compile was never tried on mps: take device cpu, or do not compile",
            "cpu": _cannot_compile("CXX", os.environ.get("CXX") or "g++", "c++", "-fopenmp"),
            "cuda": missing or _cannot_compile("CC", c_compiler, "c")}


def _cannot_compile(variable: str, compiler: str, language: str, *options: str) -> str | None:
    """Build a shared library against Python's headers; return what went wrong, or None."""
    with tempfile.TemporaryDirectory(prefix="hpcbench-compiler-") as folder:
        command = [compiler, "-x", language, "-", "-shared", "-fPIC", *options,
                   f"-I{sysconfig.get_path('include')}", "-o", f"{folder}/trial.so"]
        try:
            done = subprocess.run(command, input=_SOURCE, text=True, capture_output=True,
                                  errors="backslashreplace", timeout=_TRIAL_TIMEOUT_S, check=False)
        except FileNotFoundError:
            return f"there is no compiler {compiler}: install one, or set {variable}"
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"the compiler {compiler} does not run: {error}"
    if done.returncode == 0:
        return None
    errors = [line.strip() for line in done.stderr.splitlines() if "error" in line.lower()]
    return f"the compiler {compiler} fails: {(errors or [f'exit code {done.returncode}'])[0]}"
