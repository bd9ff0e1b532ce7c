"""Peaks in the shipped sweeps: a text between ``$(`` and ``)`` names rows of the table.

``$(H100 SXM, bf16 fp16)`` becomes a mapping of FLOP/s, ``$(H100 SXM, memory)`` GB of its smallest
variant, ``$(H100 SXM, bandwidth)`` GB/s of that, ``$(nvlink4)`` GB/s in one direction.

One shipped sweep for known hardware: its text, its content, and its comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcbench.config.axes import unknown_name
from hpcbench.config.load import parse_text
from hpcbench.config.presets import HARDWARE
from hpcbench.errors import UsageError
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


_KEY = re.compile(r"  (\w+):")
_COMMENT = re.compile(r" *# ?(.*)")


@dataclass(frozen=True, slots=True)
class Preset:
    """A sweep for known hardware.

    ``text`` is the file with its comments and with peaks (`operations.peaks`), ``content`` the
    mapping in it. ``about`` is a sentence about the machine. ``sources`` maps keys of section
    ``hardware`` to the comment before them."""

    name: str
    text: str
    content: Mapping[str, Any]
    about: str
    sources: Mapping[str, str]


def load_preset(name: str) -> Preset:
    """Return the shipped sweep for a machine. Raises UsageError if there is none of that name."""
    if name not in HARDWARE:
        raise UsageError(f"--hardware: {unknown_name(name, HARDWARE)}")
    file = Path(__file__).with_name(f"{name}.yaml")
    text = filled(file.read_text(encoding="utf-8"))
    return Preset(name, text, parse_text(text, file), _comment(text.splitlines()[1]),
                  dict(_sources(text)))


def _comment(line: str) -> str:
    match = _COMMENT.fullmatch(line)
    return match[1] if match else ""


def _sources(text: str) -> Iterator[tuple[str, str]]:
    """Yield each key of section ``hardware`` that a comment stands before, with that comment."""
    section = text.partition("\nhardware:\n")[2]
    comment: list[str] = []
    for line in section.splitlines():
        if not line.startswith("  "):
            return
        if note := _comment(line):
            comment.append(note)
        elif match := _KEY.match(line):
            if comment:
                yield match[1], " ".join(comment)
            comment = []
