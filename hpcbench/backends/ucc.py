"""UCC: built into torch or the plug-in torch_ucc, and what of it works on this machine.

The plug-in registers backend ``ucc`` when it is imported. It is imported only in processes that
may crash: in workers, and in a child of the probe that tries each collective on one rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.backends.child import Answers, Question
from hpcbench.measure.libraries import loaded_libraries, mapped_files
from hpcbench.operations.torch_calls import all_gather_tensor, reduce_scatter_tensor

_PLUGIN = "torch_ucc"
_ONLY_THE_DEFAULT = ("UCC_CLS", "UCC_CL_BASIC_TLS", "UCC_TLS")
# torch asserts that it knows a backend; ProcessGroupUCC::reduce looks ops up with map::at
_REFUSALS = (RuntimeError, ValueError, AssertionError, IndexError)


def load() -> str | None:
    """Make backend ``ucc`` known to torch.distributed; return why that cannot be, or None."""
    if dist.is_ucc_available() or not dist.is_available():
        return None if dist.is_available() else "torch was built without torch.distributed"
    if importlib.util.find_spec(_PLUGIN) is None:
        return f"torch {torch.__version__} was built without it, and {_PLUGIN} is not installed"
    try:
        with warnings.catch_warnings():  # it registers itself without saying for which devices
            warnings.filterwarnings("ignore", "Device capability of ucc unspecified")
            importlib.import_module(_PLUGIN)
    except (ImportError, OSError) as error:
        return f"{_PLUGIN} cannot be imported: {_line(error)}"
    return None


def ucc_question() -> Question | None:
    """Return what to ask a child for `ucc_facts`; None where there is no UCC to ask."""
    found = dist.is_ucc_available() or importlib.util.find_spec(_PLUGIN) is not None
    return _try_everything if found else None


def cuda_question() -> Iterator[tuple[str, Any]]:
    """Reduce a tensor of this one rank on the first GPU: why it takes no GPU memory, or None."""
    _forget_layers()
    load()
    yield "without_cuda", _refusal_of_one_rank("cuda")


def ucc_facts(answers: Answers | None) -> dict[str, Any]:
    """Return plain JSON values of what a child answered to `ucc_question`.

    Keys: ``reason`` (why ucc cannot be used at all, or None); ``source`` (``torch`` or
    ``torch_ucc``); ``layers`` (transport layers of the loaded library, e.g. ``ucp``; None if they
    are unknown); ``lacks`` (`refused` of `one_rank_calls`); ``without_cuda`` (why it takes no
    GPU memory, None if it does or there is no GPU); ``versions``; ``libraries``
    (`measure.libraries.loaded_libraries` with ucc loaded).
    """
    facts: dict[str, Any] = {
        "source": "torch" if dist.is_ucc_available() else _PLUGIN, "layers": None, "lacks": {},
        "versions": {}, "libraries": {}, "without_cuda": None}
    if answers is None:
        return {**facts, "reason": load()}
    if answers.lost:
        return {**facts, "reason": untried(answers.lost)}
    return {**facts, **answers.values}


def untried(lost: str) -> str:
    """Return the reason against UCC of a child that ended before its answer."""
    return f"a group of one rank could not be tried: the process {lost}"


def _try_everything() -> Iterator[tuple[str, Any]]:
    """Open a group of this one rank on the host and call each collective once."""
    _forget_layers()
    if reason := load():
        yield "reason", reason
        return
    yield "layers", _layers()
    yield "versions", _versions()
    yield "libraries", loaded_libraries()
    error = _refusal_of_one_rank("cpu")
    if error is None:
        yield "lacks", refused(one_rank_calls())
    yield "reason", None if error is None else f"a group of one rank does not work: {error}"


def _forget_layers() -> None:
    """Have UCC take its default layers, whatever the user chose for the cases."""
    for name in _ONLY_THE_DEFAULT:
        os.environ.pop(name, None)


def _refusal_of_one_rank(device: str) -> str | None:
    """Open a group of this one rank and reduce a tensor; return why that fails, or None."""
    try:
        dist.init_process_group("ucc", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(1, device=device))
        if device == "cuda":
            torch.cuda.synchronize()
    except _REFUSALS as error:
        return _line(error)
    return None


def one_rank_calls() -> dict[str, Callable[[], object]]:
    """Return what one rank can call of what a plan may ask for, by collective or op.

    Each call is the one that the workload of that name makes. all_reduce is not among them: a ucc
    without it is none. Nor is send_recv: torch refuses to send to oneself.
    """
    one, two = torch.ones(1), torch.empty(1)
    return {
        "all_gather": lambda: all_gather_tensor(two, one),
        "reduce_scatter": lambda: reduce_scatter_tensor(two, one),
        "all_to_all": lambda: dist.all_to_all_single(two, one),
        "uneven all_to_all": lambda: dist.all_to_all_single(two, one, [1], [1]),
        "broadcast": lambda: dist.broadcast(one, 0),
        "reduce": lambda: dist.reduce(one, 0),
        "gather": lambda: dist.gather(one, [two], 0),
        "scatter": lambda: dist.scatter(two, [one], 0),
        "barrier": dist.barrier,
        "avg": lambda: dist.all_reduce(one, dist.ReduceOp.AVG),
    }


def refused(calls: Mapping[str, Callable[[], object]]) -> dict[str, str]:
    """Return what ucc says to those of the calls that it refuses."""
    refusals = {}
    for name, call in calls.items():
        try:
            call()
        except _REFUSALS as error:
            refusals[name] = _line(error)
    return refusals


def _versions() -> dict[str, str]:
    """Return the versions of the libraries that are loaded now."""
    versions = {}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions[_PLUGIN] = importlib.metadata.version(_PLUGIN)
    for name, library, function in (("ucc", "libucc.so", "ucc_get_version"),
                                    ("ucx", "libucp.so", "ucp_get_version")):
        if path := _loaded(library):
            numbers = [ctypes.c_uint() for _ in range(3)]
            getattr(ctypes.CDLL(str(path)), function)(*map(ctypes.byref, numbers))
            versions[name] = ".".join(str(number.value) for number in numbers)
    return versions


def _layers() -> list[str] | None:
    """Return the transport layers that lie beside the loaded libucc, None if it is linked in."""
    library = _loaded("libucc.so")
    named = os.environ.get("UCC_COMPONENT_PATH")
    folder = Path(named) if named else library.parent / "ucc" if library else None
    if folder is None or not folder.is_dir():
        return None
    return sorted({path.name.removeprefix("libucc_tl_").partition(".")[0]
                   for path in folder.glob("libucc_tl_*.so*")})


def _loaded(name: str) -> Path | None:
    """Return the path of a shared library of this process whose file name begins so."""
    return next((path for path in mapped_files() if path.name.startswith(name)), None)


def _line(error: Exception) -> str:
    """Return the first line of a library's error that is not empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200]
