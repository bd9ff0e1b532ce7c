"""Facts of torch's CUDA build, which needs no GPU and no driver for them, kept as small data.

``python tests/cuda_wheel.py`` of an environment that has this build (scripts/cuda_wheel makes one)
prints what differs from tests/data/cuda_wheel.json and ends with 1 if anything does; ``--write``
writes the file. tests/unit/test_cuda_facts.py holds the package against it where the build is not.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
STORED = TESTS / "data" / "cuda_wheel.json"

NAMES = (
    "torch._C._distributed_c10d._dump_fr_trace_json",
    "torch._C._distributed_c10d._dump_nccl_trace_json",
    "torch.distributed.ProcessGroupNCCL.Options",
    "torch.distributed.barrier",
    "torch.distributed.new_group",
    "torch.distributed._symmetric_memory.rendezvous",
)
"""Asked for beside what the package's source names: it reaches them by other ways, or might."""
TEXTS = (
    "CUDA error: ", "CUDA error: out of memory", "CUDA out of memory", "Cuda failure",
    "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "Failed to CUDA malloc",
    "Failed to CUDA calloc", "Failed to CUDA host alloc", "Failed to malloc",
    "Multiplication of two Float8_e5m2 matrices is not supported",
    "self.size(0) needs to be greater than 16", "detected allocations from overlapping devices",
)
"""Asked for beside what the package recognises: skips and advice rely on them."""
NCCL_LOG = ("Bytes -> ", " coll channels, ", "] via ", "Channel %02d/%02d :")
"""What stands in the lines of NCCL's log that `hpcbench.measurement.library_log` reads."""
DEFAULTS = (
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.backends.cuda.matmul.allow_fp16_accumulation",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.fp32_precision",
    "torch.backends.cudnn.allow_tf32",
    "torch.backends.cudnn.conv.fp32_precision",
    "torch.backends.cudnn.rnn.fp32_precision",
    "torch.backends.cudnn.benchmark",
    "torch.backends.cudnn.deterministic",
)
OVERRIDE = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
"""What NGC's images set to 1."""
LIBRARIES = (
    "libtorch_cuda.so", "libc10_cuda.so", "libcudart.so.*", "libtorch_cpu.so", "libc10.so",
    "libtorch_python.so", "libnccl.so.2", "libcublas.so.*", "libcublasLt.so.*",
    "libcudnn_graph.so.*")
_ABSENT = "absent"


def facts() -> dict[str, Any]:
    """Return the facts of torch in this process."""
    import torch

    from torch_names import torch_names

    names = sorted({*torch_names(), *NAMES} - {*DEFAULTS})
    nccl = getattr(torch.distributed, "ProcessGroupNCCL", None)
    options = nccl.Options() if nccl else None
    return {
        "versions": _versions(),
        "architectures": " ".join(torch.cuda.get_arch_list()),
        "defaults": defaults(),
        "defaults_with_override": _defaults_with_override(),
        "names": {name: described(name) for name in names},
        "nccl_options": _fields(options),
        "nccl_options.config": _fields(getattr(options, "config", None)),
        **_texts(),
    }


def defaults() -> dict[str, Any]:
    """Return how torch rounds, in a process that has changed nothing."""
    return {name: _found(name) for name in DEFAULTS}


def described(name: str) -> str:
    """Return the parameters of what torch has by this name, ``present`` if it tells none."""
    try:
        found = _found(name)
    except (AttributeError, ImportError):
        return _ABSENT
    parameters = _parameters(name, found) if callable(found) else None
    return "present" if parameters is None else f"({', '.join(parameters)})"


def _found(name: str) -> Any:
    """Return what torch has by a full name. Raises AttributeError or ImportError."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ImportError(name)


def _parameters(name: str, found: Any) -> list[str] | None:
    import torch

    operator = re.fullmatch(r"torch\.ops\.(\w+)\.(\w+)(?:\.\w+)?|torch\.(_\w+)", name)
    if operator:
        schemas = torch._C._jit_get_schemas_for_operator(
            f"{operator[1]}::{operator[2]}" if operator[1] else f"aten::{operator[3]}")
        return list(dict.fromkeys(
            argument.name for schema in schemas for argument in schema.arguments)) or None
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return None
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [marks.get(one.kind, "") + one.name for one in signature.parameters.values()]


def _fields(owner: object) -> str:
    return " ".join(name for name in dir(owner) if not name.startswith("_")) if owner else ""


def _versions() -> dict[str, str]:
    import torch

    nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else ()
    return {"torch": torch.__version__, "cuda": str(torch.version.cuda),
            "nccl": ".".join(map(str, nccl)), "cudnn": str(torch.backends.cudnn.version()),
            "triton": importlib.import_module("triton").__version__}


def _defaults_with_override() -> dict[str, Any]:
    """Return the defaults that differ with `OVERRIDE`, which torch reads when it is loaded."""
    code = "import json, cuda_wheel; print(json.dumps(cuda_wheel.defaults()))"
    told = subprocess.run([sys.executable, "-c", code], cwd=TESTS, text=True, check=True,
                          stdout=subprocess.PIPE, env={**os.environ, OVERRIDE: "1"}).stdout
    before = defaults()
    return {name: value for name, value in json.loads(told).items() if value != before[name]}


def _texts() -> dict[str, Any]:
    import torch

    from library_strings import LibraryStrings, found_in
    from torch_names import recognised_texts

    packages = Path(torch.__file__).parents[1]
    libraries = [LibraryStrings(path) for pattern in LIBRARIES
                 for folder in ("torch/lib", "nvidia/*/lib")
                 for path in sorted(packages.glob(f"{folder}/{pattern}"))]
    system = [LibraryStrings(path) for path in _of_the_system()]
    texts = {}
    for text in sorted(recognised_texts() | {text.lower() for text in TEXTS}):
        texts[text] = found_in(libraries, text)
        if not texts[text] and found_in(system, text):  # without what differs from host to host
            texts[text] = {"Python or the system": text}
    log = {line for library in libraries if library.name.startswith("libnccl")
           for text in NCCL_LOG for line in library.holding(text)}
    return {"texts": texts, "nccl_log": sorted(log)}


def _of_the_system() -> list[Path]:
    """Return the files of Python itself and of the libraries of C and C++ in this process."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    paths = {Path(words[5]) for words in lines if len(words) == 6}
    return sorted(path for path in paths
                  if path.name.startswith(("libc.so", "libstdc++.so", "libpython", "python")))


def main() -> int:
    """Write or compare."""
    sys.path[:0] = [str(TESTS / "unit"), str(TESTS.parent)]
    told = json.dumps(facts(), indent=1) + "\n"
    if sys.argv[1:] == ["--write"]:
        STORED.write_text(told, encoding="utf-8")
        print(f"wrote {STORED}")
        return 0
    stored = STORED.read_text(encoding="utf-8")
    sys.stdout.writelines(difflib.unified_diff(
        stored.splitlines(keepends=True), told.splitlines(keepends=True), "stored", "this torch"))
    return int(stored != told)


if __name__ == "__main__":
    sys.exit(main())
