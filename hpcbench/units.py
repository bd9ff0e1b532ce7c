"""Units: the only place where bytes, times, rates, counts and ranks become text, or the reverse.

GB = 1e9 B (rates, as nccl-tests prints them); KiB = 2**10 B, MiB = 2**20 B, GiB = 2**30 B (sizes).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, TypeVar

HOUR_S = 3600
_BINARY = {"": 1, "b": 1, "k": 2**10, "kib": 2**10, "m": 2**20, "mib": 2**20, "g": 2**30,
           "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Return the bytes in ``"64KiB"``, ``"1M"`` (binary, as nccl-tests), ``"1MB"`` or ``8``.

    Raises ``ValueError`` for anything else, negative numbers and fractions of a byte."""
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2].lower() not in _BINARY:
        raise ValueError(f'{shortened(repr(text))} is not a size; write 8, "64KiB", "1MiB" or '
                         '"2GiB"')
    number = float(match[1]) * _BINARY[match[2].lower()]
    if number != int(number):
        raise ValueError(f"{shortened(repr(text))} is not a whole number of bytes")
    return int(number)


_FLOPS = re.compile(r"\s*(\d+(?:\.\d+)?(?:[eE]\+?\d{1,2})?)\s*([kMGTPE]?)(?:FLOPS|FLOP/s)?\s*")


def parse_flop_per_s(text: str) -> float:
    """Return the FLOP/s in ``"989T"``, ``"989 TFLOP/s"``, ``"1.98P"`` or ``"989e12"``.

    Raises ``ValueError`` for anything else, and below 1e9, as of ``989``, whose T is missing."""
    match = _FLOPS.fullmatch(text)
    rate = float(match[1]) * 1000.0 ** " kMGTPE".index(match[2] or " ") if match else 0.0
    if not 1e9 <= rate < 1e30:
        raise ValueError(f'{shortened(repr(text))} is no rate of 1e9 FLOP/s or more; write "989T", '
                         '"989 TFLOP/s" or "989e12"')
    return rate


_MOMENTS = ("%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M",
            "%Y-%m-%d")


def moment(text: str) -> float | None:
    """Return a date or time as seconds since 1970, None for what is none; one without a time zone
    is of UTC."""
    for form in _MOMENTS:
        with suppress(ValueError):
            found = datetime.strptime(text, form)
            return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    return None


_TIMES_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_TIME = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def parse_duration_ns(text: str | int) -> int:
    """Return the nanoseconds in ``"250us"``, ``"1.5 ms"``, ``"0.1s"``, ``"80ns"`` or 0.

    Raises ``ValueError`` for anything else: no unit, negative, or a fraction of a nanosecond."""
    if text in (0, "0") and not isinstance(text, bool):
        return 0
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] not in _TIMES_NS:
        raise ValueError(f'{shortened(repr(text))} is not a duration; write "250us", "1.5ms" or '
                         '"0.1s"')
    whole, _, fraction = match[1].partition(".")
    scaled = int(whole + fraction) * _TIMES_NS[match[2]]
    if scaled % 10**len(fraction):
        raise ValueError(f"{shortened(repr(text))} is not a whole number of nanoseconds")
    return int(scaled // 10**len(fraction))


def duration_text(duration_ns: int) -> str:
    """Return a short exact duration that `parse_duration_ns` reads: ``250us``, ``1.5ms``, ``0``."""
    for unit, unit_ns in reversed(_TIMES_NS.items()):
        if duration_ns >= unit_ns and duration_ns * 1000 % unit_ns == 0:
            thousandths = duration_ns * 1000 // unit_ns
            whole, rest = divmod(thousandths, 1000)
            return f"{whole}" + f".{rest:03}".rstrip("0").rstrip(".") + unit
    return "0"


def shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def format_bytes(size_bytes: int) -> str:
    """Return a short exact size such as ``8``, ``64KiB`` or ``1.5MiB``."""
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size_bytes >= factor and (size_bytes * 4) % factor == 0:
            return f"{size_bytes / factor:g}{unit}"
    return str(size_bytes)


def with_sizes(label: str) -> str:
    """Return a label with its bytes as people read them: ``64KiB`` for ``65536B``."""
    return re.sub(r"\b(\d+)B\b", lambda found: size_text(int(found[1])).replace(" ", ""), label)


def size_text(size_bytes: int) -> str:
    """Return an exact size with its unit, such as ``8 B`` or ``64 KiB``."""
    text = format_bytes(size_bytes)
    digits = text.rstrip("BGKMi")
    return f"{digits} {text[len(digits):] or 'B'}"


def round_bytes(size_bytes: int) -> str:
    """Return a size with three significant digits and its unit, as `size_text`: ``12.3 GiB``."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size_bytes >= factor:
            return f"{three_digits(size_bytes / factor)} {unit}"
    return f"{size_bytes} B"


def three_digits(value: float) -> str:
    """Return a plain decimal, never an exponent, with three significant digits: ``1230``."""
    return digits(value, 3)


def digits(value: float, count: int) -> str:
    """Return a plain decimal, never an exponent, with so many significant digits, or ``nan``."""
    text = f"{value:.{count}g}"
    return f"{Decimal(text):f}" if "e" in text else text


def seconds_unit(seconds: float) -> tuple[float, str]:
    """Return how many of its unit a second has, and the unit that gives 1 to 999: ``1e3, "ms"``."""
    units = ((1.0, "s"), (1e3, "ms"), (1e6, "us"))
    return next((unit for unit in units if abs(seconds) >= 1 / unit[0]), (1e9, "ns"))


def format_seconds(seconds: float) -> str:
    """Return a duration with three significant digits and its unit."""
    scale, unit = seconds_unit(seconds)
    return f"{three_digits(seconds * scale)} {unit}"


def rough_time(seconds: float) -> str:
    """Return an estimated duration with two digits, or whole: ``9.3 s``, ``40 s``, ``2.6 h``."""
    factor, unit = next(((factor, unit) for factor, unit in ((HOUR_S, "h"), (60, "min"))
                         if seconds >= 2 * factor), (1, "s"))
    number = seconds / factor
    return f"{number:.0f} {unit}" if number >= 9.95 else f"{number:.2g} {unit}"


def plural(count: int, noun: str) -> str:
    """Return ``1 rank``, ``4 ranks``; ``1 pass``, ``2 passes``; ``2 launches``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith(('s', 'ch')) else 's'}"


def in_launches(count: int) -> str:
    """Return what a result is of where passes are its unit: ``in this launch``."""
    return "in this launch" if count == 1 else f"in these {count} launches"


def to_ms(seconds: float) -> float:
    return seconds * 1e3


def to_tflop_per_s(flops_per_s: float) -> float:
    return flops_per_s / 1e12


def to_gb_per_s(bytes_per_s: float) -> float:
    return bytes_per_s / 1e9


def in_summary_units(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by name; rates as the summaries have them: ``x_bytes_per_s`` as ``x_gb_per_s``.

    ``x_flops_per_s`` becomes ``x_tflop_per_s``; absent values stay None."""
    in_units = {}
    for name, value in values.items():
        for unit, other, convert in (("_bytes_per_s", "_gb_per_s", to_gb_per_s),
                                     ("_flops_per_s", "_tflop_per_s", to_tflop_per_s)):
            if name.endswith(unit):
                name, value = name.removesuffix(unit) + other, value and convert(value)
        in_units[name] = value
    return in_units


def rank_list(ranks: Iterable[int]) -> str:
    """Return ranks as short text: ``1, 3-5``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)


Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key, in the order in which they come."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def vary(rows: Iterable[Iterable[Value]]) -> tuple[list[Value], list[list[Value]]]:
    """Return what all rows have, in the order of the first one, and what each has beside.

    Items are words, options, or, if the place counts, pairs such as ``enumerate`` makes."""
    each = [list(row) for row in rows]
    common = set.intersection(*map(set, each)) if each else set[Value]()
    own = [[item for item in row if item not in common] for row in each]
    return [item for item in each[0] if item in common] if each else [], own


def by_value(values: Mapping[int, Value]) -> dict[Value, list[int]]:
    """Return the ranks that have each value, of values by rank."""
    return grouped((value, rank) for rank, value in values.items())


def in_parts(values: Sequence[Value], most: int) -> Iterator[tuple[str, Sequence[Value]]]:
    """Yield parts of at most so many values, each with how its name ends: ``-1``, ``-2``.

    The name of what is not split ends as it is."""
    for number, first in enumerate(range(0, len(values), most), 1):
        yield f"-{number}" * (len(values) > most), values[first:first + most]


def equal_groups(world_size: int, groups: int, stride: int = 1) -> tuple[range, ...]:
    """Return the ranks of each of ``groups`` equal groups, whose ranks are ``stride`` apart.

    Groups that lie between each other's ranks fill a span of ranks; spans follow one another. With
    8 ranks, 4 groups of stride 2 are (0, 2), (1, 3), (4, 6) and (5, 7); of stride 1, pairs; of
    stride 4, (0, 4), (1, 5) and so on. ``stride`` divides ``groups``, which divide ``world_size``.
    """
    span = max(world_size // groups, 1) * stride
    return tuple(range(first, first + span, stride) for start in range(0, world_size, span)
                 for first in range(start, start + stride))


def on_ranks(groups: Mapping[Value, Iterable[int]]) -> str:
    """Return ``200 on rank 0, 2-3, 199 on rank 1``."""
    return ", ".join(f"{value} on rank {rank_list(ranks)}" for value, ranks in groups.items())
