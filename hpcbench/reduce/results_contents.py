"""What each group, dataset, attribute and number of results.h5 is (docs/results-file.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hpcbench.reduce.case_columns import COLUMNS, KindColumns
from hpcbench.reduce.telemetry_file import CONTENTS as TELEMETRY
from hpcbench.reduce.topology import CONTENTS as TOPOLOGY
from hpcbench.reduce.use import Use
from hpcbench.trace.contents import CLOCKS, STAMPS
from hpcbench.trace.described import LINES, PURE, ROOT, Contents, Described

MEANING: Mapping[Use, str] = {
    Use.COUNTED: "in the statistics, without a flag of this kind",
    Use.COUNTED_RAMP: "in the statistics, as the number of iterations was given; before the steady "
                      "state",
    Use.COUNTED_SURPLUS: "in the statistics, as the number of iterations was given; more than the "
                         "shortest pass has",
    Use.WARMUP: "not in the statistics: a warm-up",
    Use.SINGLE: "not in the statistics: one call for its check",
    Use.RAMP: "not in the statistics: before the steady state",
    Use.SURPLUS: "not in the statistics: more than the shortest pass has",
    Use.CASE_NOT_OK: "not in the statistics: the case has none",
}
VALUES = tuple(f"{int(use)} {use.name.lower()}: {text}" for use, text in MEANING.items())
ATTRIBUTES: Mapping[str, str] = {
    "format": "hpcbench-results",
    "schema_version": "version of the layout of this file",
    "run_id": "id of the run",
    "plan_hash": "hash of the plan",
    "name": "name of the run, from the sweep file",
    "world_size": "number of ranks of the job",
    "faults": "faults that were injected on purpose; absent without any",
}
_CASES: Contents = {
    "cases": Described(
        "a row for each planned case, in the plan's order; where a case has no such value a text "
        "is empty, a whole number is -1 and any other number is NaN"),
    "cases/detail": Described(
        "a line for each row: reason, device, library (algorithm, protocol, channels, transport), "
        "memory by rank, detail: what ranks recorded beside their samples, and trace_missing: true "
        "if it failed only because a rank's trace is not there", LINES),
    "cases/timing": Described(
        "a line for each row: what is known of its timing beyond the columns, such as "
        "launch_medians_s, pass_medians_s and steps; null if it was not timed", LINES),
    "cases/usage": Described(
        "a line for each row: what it used of the machine; null where nothing was read around it; "
        "absent where nothing was to be read", LINES),
    "cases/phases": Described(
        "a line for each row: names of its phases and offset of the first value in /phases/ns; "
        "null if it has none", LINES),
}
_CONTENTS: Contents = {
    ROOT: Described("reduced results of one run; see docs/results-file.md"),
    "run": Described("one line: what identifies the run, versions, nodes and environment", LINES),
    "plan": Described("one line: the plan with the resolved configuration", LINES),
    "findings": Described("a line for each finding: code, scope and message; see docs/checks.md",
                          LINES),
    "canary": Described(
        "one line: the small case that was measured again and again; null without it", LINES),
    "clocks": Described("one line: how clocks were compared; null if nothing was recorded", LINES),
    **_CASES,
    "samples": Described("a row for each rank and sample; rank by rank within a case"),
    "samples/case": Described("row of the case in /cases", PURE),
    "samples/rank": Described("the rank", PURE),
    "samples/launch": Described("the launch, from 0", PURE),
    "samples/pass_index": Described("the pass within its launch, from 0", PURE),
    "samples/iteration": Described("number of the sample in its case on this rank, from 0", PURE),
    "samples/use": Described(
        "whether the sample is in the statistics, and if not why", PURE, values=VALUES),
    **STAMPS,
    "phases": Described(
        "phases of samples, such as those of a training step; absent where no case has any"),
    "phases/ns": Described(
        "of each case with phases one phase after another, each with a value for each of its "
        "samples, in their order: its duration, or of 'arrival N' the time from the step's begin "
        "to the last gradient of bucket N", "ns"),
    **CLOCKS,
    **TOPOLOGY,
    **TELEMETRY,
    "derived": Described("what each kind computes from statistics and stamps"),
}


def contents(of_kinds: KindColumns, derived: Iterable[str]) -> Contents:
    """Return what is in a file with these columns, and with derived records of these kinds."""
    columns = {f"cases/{column.name}": Described(column.text, column.units)
               for column in (*COLUMNS, *of_kinds.columns)}
    records = {f"derived/{kind}": Described(
        f"a line for each case of kind {kind}, in the plan's order: its record in SI units; null "
        "without one. Attributes: record (type), fields (digest of its form), version (of the "
        "formulas)", LINES) for kind in derived}
    return {**_CONTENTS, **columns, **records}
