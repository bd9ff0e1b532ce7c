"""Which cases are profiled where only those are wanted whose ranks wait for each other.

The rule needs no common clock: a rank that waits in a sample, or in a phase of it, is longer in it
than the rank that it waits for. Medians over the timed samples keep single ones from deciding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hpcbench.trace.schema import ARRIVAL, SAMPLE_COLUMNS, UNTIMED, Phases, Samples

STALL_SHARE = 0.1
"""A case is profiled if ranks differ by this share of its sample's time or more (docs/method.md): a
choice, twice the 5 % from which the reducer calls a change of a median one."""
WHOLE = "sample"
_START, _END, _FLAGS = (SAMPLE_COLUMNS.index(name) for name in ("start_ns", "end_ns", "flags"))


def medians_ns(rows: Samples, phases: Phases) -> dict[str, float]:
    """Return one rank's medians over its timed samples in ns: of the sample, and of each phase.

    ``rows`` are (sample, SAMPLE_COLUMNS); empty without a timed sample.
    """
    timed = (rows[:, _FLAGS] & UNTIMED) == 0
    if not timed.any():
        return {}
    lasting = {name: values for name, values in phases.items()
               if not name.startswith(ARRIVAL) and len(values) == len(rows)}
    return {WHOLE: float(np.median((rows[:, _END] - rows[:, _START])[timed])),
            **{name: float(np.median(values[timed])) for name, values in lasting.items()}}


def stall(of_ranks: Sequence[Mapping[str, float]]) -> tuple[float, str]:
    """Return the largest difference between ranks over the longest sample, and in what it is.

    ``of_ranks`` are `medians_ns` of each rank; (0, "") where a rank has none.
    """
    if not all(WHOLE in medians for medians in of_ranks):
        return 0.0, ""
    longest_ns = max(medians[WHOLE] for medians in of_ranks)
    common = [name for name in of_ranks[0] if all(name in medians for medians in of_ranks)]
    shares = {name: (max(medians[name] for medians in of_ranks)
                     - min(medians[name] for medians in of_ranks)) / longest_ns
              for name in common} if longest_ns > 0 else {WHOLE: 0.0}
    name = max(shares, key=lambda name: shares[name])
    return shares[name], name


def reason(share: float, name: str) -> str:
    """Say what the rule found of a case."""
    where = "in the sample" if name == WHOLE else f"in phase {name}"
    return (f"the ranks' medians {where} differ by {share:.0%} of the sample; "
            f"cases from {STALL_SHARE:.0%} are profiled")
