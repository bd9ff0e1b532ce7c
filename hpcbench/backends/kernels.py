"""Whether a build of torch has code for a GPU.

``python -m hpcbench.backends.kernels 7.0`` says it for this torch and compute capability 7.0, in
job files that know which GPU they will get: exit code 2 and the remedy if there is none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

_LAST_CUDA = {(5, 0): "12.6", (6, 0): "12.6", (7, 0): "12.6"}
"""Compute capability -> CUDA of the newest wheels of torch that have code for it, for those that
later wheels lack. github.com/pytorch/pytorch/issues/172352: since torch 2.11 the wheels for CUDA
12.8 begin with 7.5, CUDA 13 cannot do less; those for 12.6 have 5.0, 6.0 and 7.0."""

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)(a?)f?")


def without_code(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Return whether none of ``architectures`` (torch.cuda.get_arch_list()) runs on a GPU.

    CUDA's rules: code for ``sm_80`` runs on all 8.x with x of 0 or more, PTX of ``compute_80`` is
    compiled for anything newer when it is loaded; ``sm_90a`` runs on 9.0 only. Names of other
    makers' GPUs (ROCm's ``gfx942``) count among none of them: without one of CUDA it is False.
    """
    ours = [match for match in map(_ARCHITECTURE.fullmatch, architectures) if match]
    for match in ours:
        kind, built = match[1], (int(match[2]), int(match[3]))
        same_series = kind == "compute" or built[0] == capability[0]
        if built == capability if match[4] else built <= capability and same_series:
            return False
    return bool(ours)


def no_code_reason(
    capability: tuple[int, int], architectures: Sequence[str], torch_version: str,
) -> str | None:
    """Return why this torch cannot use such a GPU, and which build can; None if it can.

    A build without any ``architectures`` of CUDA (for the CPU, for ROCm) is not judged.
    """
    if not without_code(capability, architectures):
        return None
    major, minor = capability
    text = (f"torch {torch_version} has no code for sm_{major}{minor}, only for "
            f"{', '.join(architectures)}")
    cuda = _LAST_CUDA.get(capability)
    return text + (f"; the wheels for CUDA {cuda} have: pip install torch --index-url "
                   f"https://download.pytorch.org/whl/cu{cuda.replace('.', '')}" if cuda else
                   "; install a newer torch")


def why_not_judged(
    architectures: Sequence[str], torch_version: str, cuda: str | None, hip: str | None,
) -> str | None:
    """Return why nothing can be said of a capability here, None where `no_code_reason` can.

    ``cuda`` and ``hip`` are those of torch.version. Older torches tell no architectures where no
    GPU is visible, as on login nodes.
    """
    if hip:
        return f"torch {torch_version} is a build for ROCm: capabilities are CUDA's"
    if architectures:
        return None
    if cuda:
        return (f"torch {torch_version} (CUDA {cuda}) tells its architectures only where a GPU is "
                "visible: not checked here")
    return f"torch {torch_version} is no CUDA build: cases of GPUs will be skipped"


def main() -> int:
    """Say whether torch here can use GPUs of a capability; what is not judged is a note."""
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d", sys.argv[1]):
        print("usage: python -m hpcbench.backends.kernels CAPABILITY, such as 7.0 for V100",
              file=sys.stderr)
        return 2
    import torch

    major, minor = sys.argv[1].split(".")
    architectures = torch.cuda.get_arch_list()
    note = why_not_judged(architectures, torch.__version__, torch.version.cuda, torch.version.hip)
    if note:
        print(f"note: {note}")
    reason = no_code_reason((int(major), int(minor)), architectures, torch.__version__)
    if reason:
        print(f"hpcbench: {reason}", file=sys.stderr)
    return 2 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
