"""What is said of a training's communication: cells of its row, lines below the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from hpcbench.kinds.training.derive.exposed import Exposure
from hpcbench.kinds.training.derive.slow_ranks import LateRank, SlowAlone, SlowPhase
from hpcbench.views.cell_text import cell_text
from hpcbench.views.columns import over_passes_cell
from hpcbench.views.table import Cell, Column, Show
from hpcbench.views.words import plural

COLUMNS = (
    Column("exposed_time", "exposed", Show.MS, "ms", "t - t(off)", "less", optional=True),
    Column("exposed_share", "exposed", Show.PERCENT, "%", "of t", "less", optional=True),
    Column("overhead", "overhead", Show.PERCENT, "%", "t / t(off) - 1", "less", optional=True),
    Column("overlap", "overlap", Show.WHOLE_PERCENT, "%", "of the shorter part", "more",
           optional=True))
DEFINITIONS = (
    "exposed = t - t(off), in % of t, too; overhead = t / t(off) - 1; overlap = (t(off) + t(only) "
    "- t) / the shorter of both,",
    "  where t is the time of a step, t(off) that of the same step without communication, t(only) "
    "that of its calls alone",
    "  (of the same pass; shown is the median over passes, and from the least to the greatest)",
)
DEFINITIONS_OF_PIPELINES = (
    "idle = 1 - a rank's own time without communication / t: it waits, or communicates; bubble = "
    "the share of a step that",
    "  the schedule alone makes ranks wait: if all take equally long, and rank by rank if each "
    "takes its own time",
)


def exposure_cells(exposure: Exposure) -> tuple[Cell, ...]:
    """Return a cell for each of COLUMNS."""
    exposed, overhead = exposure.exposed_s, exposure.overhead
    return (exposed.median if exposed else None, over_passes_cell(exposure.exposed_share),
            overhead.median if overhead else None, over_passes_cell(exposure.efficiency))


def missing_lines(exposures: Iterable[Exposure]) -> Iterator[str]:
    """Yield why rows have no such numbers."""
    counts = Counter(reason for exposure in exposures for reason in exposure.missing)
    for reason, count in counts.items():
        yield f"{plural(count, 'row')} not paired: {reason}"


def idle_line(exposure: Exposure) -> str:
    """Return how long each rank of a pipeline is idle."""
    bubble = "" if exposure.bubble is None else (
        f"bubble {cell_text(exposure.bubble, Show.PERCENT)} % as the schedule predicts, with the "
        "ranks' own times "
        f"{', '.join(cell_text(share, Show.PERCENT) for share in exposure.uneven_bubble)} %; ")
    idle = ", ".join(
        f"{cell_text(over_passes_cell(share), Show.PERCENT)} % on rank {rank}"
        for rank, share in zip(exposure.ranks, exposure.idle_share, strict=True))
    return f"{bubble}idle {idle}"


def slow_alone_line(slow: SlowAlone) -> str:
    """Return which rank computes slowly in every pass."""
    return (f"without communication a step takes rank {slow.rank} {_ms(slow.step_s)}, rank "
            f"{slow.quickest_rank} {_ms(slow.quickest_step_s)}: {slow.ratio:.2f} times as long")


def late_line(late: LateRank) -> str:
    """Return which rank arrives last where gradients are exchanged."""
    before = "" if late.first_behind_s is None else (
        f"; at the first of {late.buckets} buckets {_ms(late.first_behind_s)}")
    return (f"rank {late.rank} arrives last at the exchange in {late.share:.0%} of the steps, "
            f"{_ms(late.behind_s)} behind the median of the others{before}")


def slow_phase_line(slow: SlowPhase) -> str:
    """Return which rank stands out in a phase."""
    which, wait = ("shortest", ": the others wait for it") if slow.is_shortest else ("longest", "")
    return (f"{slow.phase} is {which} on rank {slow.rank} in {slow.share:.0%} of the steps"
            f"{wait}; longest of a rank / shortest {slow.ratio:.2f}")


def _ms(time_s: float) -> str:
    return f"{cell_text(time_s, Show.MS)} ms"
