"""What each group, dataset, attribute and bit of a sealed trace is (docs/results-file.md)."""

from __future__ import annotations

from collections.abc import Mapping

from hpcbench.plan.case import STATUSES
from hpcbench.trace import telemetry
from hpcbench.trace.columns import LINES, PURE, ROOT, TEXT, Contents, Described
from hpcbench.trace.schema import SETTLING_CALLS, STOP_REASONS, Flag

MEANING: Mapping[Flag, str] = {
    Flag.WARMUP: "a warm-up; in no statistic",
    Flag.CHECKED: "the result was compared with what must come out, outside the time",
    Flag.LATE_START: "the rank was not ready at the agreed start (mode isolated); it counts",
    Flag.SINGLE: "one call for its check among samples of several calls; in no statistic",
    Flag.SETTLED: f"{SETTLING_CALLS} unrecorded calls stand between a check and the sample",
}
BITS = tuple(f"{int(flag)} {(flag.name or '').lower()}: {text}" for flag, text in MEANING.items())
STAMPS: Contents = {
    "samples/start_ns": Described("begin of the sample on the rank's own monotonic clock", "ns"),
    "samples/end_ns": Described("end of the sample on the same clock", "ns"),
    "samples/enqueue_ns": Described(
        "time that the host took to issue the work to the device; -1 on a CPU", "ns"),
    "samples/device_ns": Described(
        "time between two events of the device around the work; -1 on a CPU", "ns"),
    "samples/flags": Described(
        "bits that are set for the sample, added up; 0 of none", PURE, bits=BITS),
}
"""Of the table of samples, in traces and in results."""
CLOCKS: Contents = {
    "clock": Described("a row for each rank and synchronisation of its clock with rank 0's"),
    "clock/rank": Described("the rank", PURE),
    "clock/identity": Described("which clock it reads: boot id and time namespace", TEXT),
    "clock/n_clocks": Described("number of different clocks in the job", PURE),
    "clock/local_ns": Described("when this row was recorded, on the rank's monotonic clock", "ns"),
    "clock/realtime_ns": Described("the same moment as time since 1970", "ns"),
    "clock/t_ref_ns": Described("local time of the last point of the fit", "ns"),
    "clock/slope": Described("local time gained per local time; 1e-6 is 1 ppm fast", "ns/ns"),
    "clock/offset_ns": Described("local minus global time at t_ref_ns", "ns"),
    "clock/bound_ns": Described("largest possible error of the offset at t_ref_ns", "ns"),
    "clock/slope_bound": Described("largest possible error of the slope", "ns/ns"),
    "clock/residual_ns": Described("median distance of the used points from the line", "ns"),
    "clock/parent": Described(
        "rank whose clock it was compared with; -1 of the global clock", PURE),
    "clock/n_used": Described("points of the fit", PURE),
    "clock/n_rejected": Described("points left out, with a wider bound than the median", PURE),
    "clock/check_error_ns": Described(
        "error that a check after the fit measured; NaN without a check", "ns"),
    "clock/check_bound_ns": Described(
        "largest possible error of the check; NaN without a check", "ns"),
}
ATTRIBUTES: Mapping[str, str] = {
    "format": "hpcbench-trace",
    "schema_version": "version of the layout of this file",
    "run_id": "id of the run, the same on all ranks",
    "plan_hash": "hash of the plan, the same on all ranks",
    "rank": "rank in the job, from 0",
    "world_size": "number of ranks of the job",
    "local_rank": "rank on its node, from 0",
    "hostname": "name of the node",
    "node": "what identifies the machine: ranks of one machine have the same",
    "pid": "process id of the supervisor",
    "recovered": "whether the rank never came to its end, or a part of its journal was lost",
}
CONTENTS: Contents = {
    ROOT: Described("what one rank recorded in one attempt at a run; see docs/results-file.md"),
    "header": Described("one line: who wrote the trace, as in the attributes, with versions of "
                        "libraries and the environment", LINES),
    "environment": Described(
        "one line: the environment of the header alone; see docs/provenance.md", LINES),
    "plan": Described("one line: the plan, in the trace of rank 0 only", LINES),
    "notes": Described("a line for each event beside the cases: kind and data", LINES),
    "damage": Described("a line for each part of the journal that could not be read", LINES),
    "cases": Described("a row for each record: a case in a pass of a launch"),
    "cases/case_id": Described("id of the case, as in the plan", TEXT),
    "cases/status": Described(f"how it ended: {', '.join(STATUSES)}", TEXT),
    "cases/mode": Described("timing mode: isolated, pipelined or barrier_start", TEXT),
    "cases/device": Described("where it ran: cpu, cuda:0; empty if it did not run", TEXT),
    "cases/stop_reason": Described(
        f"why it took no further sample: {', '.join(STOP_REASONS)}; empty if it did not run", TEXT),
    "cases/pass_index": Described("the pass, from 0", PURE),
    "cases/launch": Described("the launch, from 0", PURE),
    "cases/attempt": Described("the attempt at the run, from 0", PURE),
    "cases/blamed_rank": Described("rank that a failure is put down to; -1 of none", PURE),
    "cases/begin_ns": Described("begin of the record on the rank's monotonic clock", "ns"),
    "cases/end_ns": Described("end of the record on the same clock", "ns"),
    "cases/n_wrong": Described(
        "wrong elements on this rank in the checked samples; -1 if none was checked", "elements"),
    "cases/position": Described(
        "cases that these workers had run before it in this pass; -1 if it did not run", PURE),
    "cases/communicator_ns": Described(
        "time to open the group under test; -1 where an earlier case had opened it", "ns"),
    "cases/sample_offset": Described("first row of its samples in /samples", "rows"),
    "cases/sample_count": Described("number of its rows in /samples", "rows"),
    "cases/detail": Described(
        "a line for each row: reason of a status other than ok, detail (first wrong element, "
        "stderr, stacks, memory), and phases, the names of its phases if it has any", LINES),
    "samples": Described("a row for each sample, in the order of /cases"),
    "samples/case": Described("row of the record in /cases", PURE),
    "samples/iteration": Described("number of the sample within its record, from 0", PURE),
    **STAMPS,
    "phases": Described(
        "phases of samples, such as those of a training step; absent where no record has any"),
    "phases/ns": Described(
        "of each record with phases, in the order of /cases, one phase after another, each with a "
        "value for each sample: its duration, or of 'arrival N' the time from the step's begin to "
        "the last gradient of bucket N", "ns"),
    **CLOCKS,
    **telemetry.contents({}, "the rank's own monotonic clock"),
}
