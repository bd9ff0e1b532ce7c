"""The options of the OSU micro-benchmarks, 5.x to 7.x, and the sweep that measures the same."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from getopt import GetoptError, getopt
from types import MappingProxyType
from typing import Any

from hpcbench.errors import UsageError
from hpcbench.interop.formats.reading.names import PARTS_IN_OSU, our_name
from hpcbench.operations.collectives import DTYPE_BYTES, CollectiveSpec, collective_spec
from hpcbench.records import dataclass

PREFIX = "osu_"
Remarks = tuple[str, ...]
_PAIRS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "latency": {"what": "latency", "messages": 1},
    "multi_lat": {"what": "latency", "messages": 1},
    "bw": {"what": "bandwidth", "direction": "one way", "cache": "warm"},
    "bibw": {"what": "bandwidth", "direction": "both at once", "cache": "warm"},
    "mbw_mr": {"what": "bandwidth", "direction": "one way", "cache": "warm"}})
"""Program between two ranks -> the keys of a block of pairs."""
_OF_ALL_PAIRS = ("multi_lat", "mbw_mr")
_TYPES: Mapping[str, str] = MappingProxyType({
    "mpi_char": "uint8", "mpi_int": "int32", "mpi_float": "fp32"})
_DEVICES: Mapping[str, str] = MappingProxyType({
    "cuda": "cuda", "rocm": "cuda", "D": "cuda", "H": "cpu"})
_MOST_BYTES, _MOST_OF_PAIRS, _WINDOW = 2**20, 2**22, 64
"""Defaults of OSU: the largest message, and how many are under way."""


@dataclass(frozen=True, slots=True)
class OsuOption:
    """An option: its letter, its long name, whether it takes a value, and why it has no effect.

    Those without ``lost`` have a counterpart."""

    letter: str
    name: str
    has_value: bool = True
    lost: str = ""


OPTIONS = (
    OsuOption("m", "message-size"), OsuOption("i", "iterations"), OsuOption("x", "warmup"),
    OsuOption("f", "full", False), OsuOption("c", "validation", False),
    OsuOption("d", "accelerator"),
    OsuOption("T", "type"), OsuOption("l", "in-place", False), OsuOption("k", "root-rank"),
    OsuOption("z", "tail-lat", False), OsuOption("W", "window-size"), OsuOption("b", "buffer-num"),
    OsuOption("M", "mem-limit", lost="set hardware.memory_per_device_gb for such a limit"),
    OsuOption("a", "array-size", lost="there is no computing during the call"),
    OsuOption("t", "num-test-calls", lost="there is no computing during the call"),
    OsuOption("r", "cuda-target", lost="there is no computing during the call"),
    OsuOption("u", "validation-warmup", lost="results are checked outside of the time"),
    OsuOption("G", "graph", lost="plots have each sample"),
    OsuOption("P", "papi", lost="telemetry has counters of its own"),
    OsuOption("D", "ddt", lost="data are contiguous"),
    OsuOption("I", "session", False, lost="MPI starts without sessions"),
    OsuOption("p", "num-pairs", lost="all pairs are measured"),
    OsuOption("R", "print-rate", lost="the rate is in bytes"),
    OsuOption("V", "vary-window", False, lost="write a list of messages instead"),
    OsuOption("h", "help", False), OsuOption("v", "version", False))
_BY_WORD = {word: one for one in OPTIONS for word in (f"-{one.letter}", f"--{one.name}")}
_WITH_EXTRA = re.compile(r"(--validation|--tail-lat|-c|-z)(?:=.*|log.*|\d.*)")
"""Options whose value may be left out, with one."""


def osu_sweep(program: str, words: Sequence[str], ranks: int) -> tuple[dict[str, Any], Remarks]:
    """Return the sweep of a command of OSU, and a remark for each option that is lost.

    Raises UsageError in one line."""
    values, remarks = _parsed(program, words)
    name = program.removeprefix(PREFIX)
    block, more = (_pairs(program, name, values) if name in _PAIRS
                   else _collective(program, name, values, ranks))
    measure: dict[str, Any] = {} if name in _PAIRS else {"mode": "barrier_start"}
    for letter, key, least in (("x", "warmup", 0), ("i", "iterations", 1)):
        if letter in values:
            measure[key] = _number(program, letter, values[letter], least)
    return {"name": program, **({"measure": measure} if measure else {}),
            "benchmarks": [block]}, (*remarks, *more)


def _parsed(program: str, words: Sequence[str]) -> tuple[dict[str, str], Remarks]:
    """Return letter -> value, and the remarks of those without a counterpart."""
    plain = [extra[1] if (extra := _WITH_EXTRA.fullmatch(word)) else word for word in words]
    try:
        pairs, places = getopt(plain, "".join(
            one.letter + ":" * one.has_value for one in OPTIONS), [
                one.name + "=" * one.has_value for one in OPTIONS])
    except GetoptError as error:
        raise UsageError(f"{program}: {error.msg}") from None
    typed = [(word, _BY_WORD[word], value) for word, value in pairs]
    values = {one.letter: value for _, one, value in typed}
    if {"h", "v"} & values.keys():
        raise UsageError(f"{program}: the command prints its help or version, and measures nothing")
    if places:
        values["d"] = places[0]
    mixed = [f"{' '.join(places)}: both ranks have their buffers as the first, {places[0]}"] if (
        len(set(places)) > 1) else []
    return values, (*mixed, *(
        f"{word} {value}".strip() + f": {one.lost}" for word, one, value in typed if one.lost))


def _foreign(letters: str, values: Mapping[str, str], name: str) -> list[str]:
    """Return a remark for each of these options that was given: the case has no such key."""
    return [f"-{letter} {values[letter]}".strip() + f": no effect: {name} has no such option"
            for letter in letters if letter in values]


def _pairs(
    program: str, name: str, values: Mapping[str, str],
) -> tuple[dict[str, Any], Remarks]:
    block: dict[str, Any] = {
        "kind": "hardware", "test": "pairs", "backend": "mpi", **_PAIRS[name]}
    if name not in _OF_ALL_PAIRS:
        block["world_size"] = 2
    if block["what"] == "bandwidth":
        block["messages"] = _number(program, "W", values.get("W", str(_WINDOW)), 1)
        block["cache"] = "cold" if values.get("b") == "multiple" else "warm"
    block["size"] = _sizes(program, values, 1, _MOST_OF_PAIRS)
    remarks = _foreign("Tlk", values, name)
    if name in _OF_ALL_PAIRS:
        remarks.append(f"{program}: every two ranks, in rounds of concurrent pairs")
    return {**block, **_device(program, values)}, tuple(remarks)


def _collective(
    program: str, name: str, values: Mapping[str, str], ranks: int,
) -> tuple[dict[str, Any], Remarks]:
    word, remarks, backend = _stripped(program, name)
    spec = collective_spec(word)
    block: dict[str, Any] = {"kind": "collective", "collective": word, "backend": backend}
    if spec.moves_data:
        types = _types(program, values, spec)
        smallest = max(DTYPE_BYTES[one] for one in types)
        factor = ranks if word in PARTS_IN_OSU else 1
        block |= {"dtype": types if len(types) > 1 else types[0],
                  "size": _sizes(program, values, smallest, _MOST_BYTES, factor)}
        if factor > 1:
            remarks.append(f"size: of the parts of all {ranks} ranks, {ranks} x that of OSU")
    if spec.has_op and "T" not in values:
        remarks.append("-T is left out: fp32 is summed, as OSU 5 and 6 do; OSU 7 has uint8")
    remarks += _foreign("Wb" if spec.has_root else "Wbk", values, word)
    if "l" in values:
        if True in (spec.in_place or ()):
            block["in_place"] = True
        else:
            remarks.append(f"-l: {word} has no form in place")
    if "k" in values and spec.has_root:
        root = values["k"].removeprefix("fixed:")
        if root == "rotate":
            block["root"] = list(range(ranks))
            remarks.append("-k rotate: each root is a case of its own")
        else:
            block["root"] = _number(program, "k", root, 0)
    return {**block, **_device(program, values)}, tuple(remarks)


def _stripped(program: str, name: str) -> tuple[str, list[str], str]:
    """Return our name of a collective, remarks on what OSU's name adds to it, and the backend."""
    remarks, backend = [], "mpi"
    if match := re.fullmatch("(?:xccl|nccl)_(.+)", name):
        name, backend = match[1], "nccl"
    if match := re.fullmatch("(.+)_persist(?:ent)?", name):
        name = match[1]
        remarks.append(f"{program}: calls are not persistent")
    name = "reduce_scatter" if name == "reduce_scatter_block" else name
    if (ours := our_name(name)) in _KNOWN:
        return ours, remarks, backend
    if name.startswith("i") and (ours := our_name(name[1:].removesuffix("v"))) in _KNOWN:
        return ours, [*remarks, f"{program}: the blocking call is measured, without overlap"], (
            backend)
    if name[-1:] in ("v", "w") and (ours := our_name(name[:-1])) in _KNOWN:
        return ours, remarks, backend
    raise UsageError(f"{program}: has no counterpart; there are collectives ({', '.join(_KNOWN)}) "
                     f"and, between two ranks, {', '.join(PREFIX + one for one in _PAIRS)}")


_KNOWN = ("all_reduce", "all_gather", "all_to_all", "barrier", "broadcast", "gather", "reduce",
          "reduce_scatter", "scatter")


def _types(program: str, values: Mapping[str, str], spec: CollectiveSpec) -> list[str]:
    if "T" not in values:
        return ["fp32" if spec.has_op else "uint8"]
    if values["T"] == "all":
        return [*_TYPES.values()]
    if values["T"] not in _TYPES:
        raise UsageError(f"{program}: -T {values['T'][:60]}: allowed are all, {', '.join(_TYPES)}")
    return [_TYPES[values["T"]]]


def _device(program: str, values: Mapping[str, str]) -> Mapping[str, str]:
    """Return where buffers are: ``-d cuda``, or ``D D`` behind a program between two ranks."""
    if "d" not in values:
        return {}
    if values["d"] not in _DEVICES:
        raise UsageError(f"{program}: {values['d'][:60]}: allowed are {', '.join(_DEVICES)}")
    return {"device": _DEVICES[values["d"]]}


def _sizes(
    program: str, values: Mapping[str, str], smallest: int, largest: int, factor: int = 1,
) -> Mapping[str, int] | int:
    """Return the range of ``-m MIN:MAX``, ``MAX`` or ``MIN:``, doubling; ``factor`` x its bytes."""
    first, colon, last = values.get("m", "").rpartition(":")
    if colon and not last:
        least, most = _number(program, "m", first, 1), largest
    else:
        least = _number(program, "m", first, 1) if first else smallest
        most = _number(program, "m", last, 1) if last else largest
    least = max(least, smallest)
    if least > most:
        raise UsageError(f"{program}: -m {values.get('m', '')}: no message has {least} to {most} "
                         "bytes")
    return least * factor if least == most else {
        "from": least * factor, "to": most * factor, "factor": 2}


def _number(program: str, letter: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) >= least):
        raise UsageError(f"{program}: -{letter} {text[:60]}: is no whole number from {least}")
    return int(text)

