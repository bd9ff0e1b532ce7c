"""Peaks in the shipped sweeps: what stands between ``$(`` and ``)`` names rows of the table.

``$(H100 SXM, bf16 fp16)`` becomes a mapping of FLOP/s, ``$(H100 SXM, memory)`` GB of its smallest
variant, ``$(H100 SXM, bandwidth)`` GB/s of that, ``$(nvlink4)`` GB/s in one direction.
"""

from __future__ import annotations

import re

from hpcbench.operations.peaks import DEVICES, LINKS, TERA

_IN_A_LINE = 4
"""Types of a mapping that stand in one line."""
_NAMED = re.compile(r"\$\(([^),]+)(?:, ([^)]+))?\)")


def filled(text: str) -> str:
    """Return a sweep file with its peaks. Raises KeyError of a name that the table lacks."""
    return _NAMED.sub(_value, text)


def _value(match: re.Match[str]) -> str:
    name, wanted = match[1], match[2]
    if wanted is None:
        return f"{LINKS[name].gb_per_s:g}"
    device = DEVICES[name]
    if wanted == "memory":
        return f"{min(device.memory_gb):g}"
    if wanted == "bandwidth":
        return f"{min(device.memory_gb_per_s):g}"
    peaks = [f"{dtype}: {device.flops[dtype] / TERA:.1f}e+12" for dtype in wanted.split()]
    lines = (", ".join(peaks[first:first + _IN_A_LINE])
             for first in range(0, len(peaks), _IN_A_LINE))
    return "{" + ",\n               ".join(lines) + "}"
