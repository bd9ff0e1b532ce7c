"""What torch tells of Apple's GPU, its device ``mps``; a machine has one at most."""

from __future__ import annotations

from typing import Any

import torch


def mps_facts() -> dict[str, Any]:
    """Return plain JSON values.

    Keys: ``reason`` (why torch cannot use it, None if it can), ``name`` (None if torch does not
    tell), ``memory_bytes`` (the most that the system recommends, of the memory that it shares with
    the host), ``without_bf16`` (what torch says to tensors of bf16, None if it has them).
    """
    if reason := _reason():
        return {"reason": reason, "name": None, "memory_bytes": 0, "without_bf16": reason}
    name = getattr(torch.backends.mps, "get_name", None)  # since torch 2.9
    return {"reason": None, "name": name() if name else None,
            "memory_bytes": int(torch.mps.recommended_max_memory()),
            "without_bf16": _refusal_of_bf16()}


def _reason() -> str | None:
    if not torch.backends.mps.is_built():
        return f"torch {torch.__version__} was built without it"
    if not torch.backends.mps.is_available():
        return "torch finds no GPU of Apple's here, or this macOS is too old for it"
    return None


def _refusal_of_bf16() -> str | None:
    """Try it: whether there is bf16, and autocast to it, depends on the system and on torch."""
    operand = torch.ones((2, 2), device="mps")
    try:
        (operand.bfloat16() @ operand.bfloat16()).sum().item()
        with torch.autocast("mps", torch.bfloat16):
            found = (operand @ operand).dtype
    except (RuntimeError, TypeError) as error:
        return str(error).splitlines()[0]
    usable = found is torch.bfloat16
    return None if usable else f"autocast of torch {torch.__version__} computes in {found}"
