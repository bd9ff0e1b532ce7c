"""Writers of the real journal, killed at random moments, sealing included: see `KILL`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import ROOT

KILL = """
import os, random, signal, sys, time
from pathlib import Path
from hpcbench.reduce.history import open_traces
from hpcbench.trace.journal import Journal, journal_path
from hpcbench.trace.sealed import seal, trace_path
from synthetic import make_case, make_header, make_plan, make_record, same_record

plan = make_plan(n_cases=20, iterations=40)
records = [make_record(case, 0) for case in plan.cases]

def write(traces, acknowledge):
    path = journal_path(traces, 0)
    with Journal.create(path, make_header(plan, 0), plan) as journal:
        for number, record in enumerate(records, 1):
            journal.append(record)
            os.write(acknowledge, bytes([number]))
        journal.note("end", {})
    seal(path, trace_path(traces, 0))
    path.unlink()
    os.write(acknowledge, b"\\xff")

def kill_one(traces, after_case, after_s):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        write(traces, writer)
        os._exit(0)
    os.close(writer)
    acknowledged = b"".join(os.read(reader, 1) for _ in range(after_case))
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    acknowledged += os.read(reader, 1000)
    os.close(reader)
    return len(acknowledged.rstrip(b"\\xff")), acknowledged.endswith(b"\\xff")

def case_and_seal_s(traces):
    # how long a case takes, and all of it, sealing included
    reader, writer = os.pipe()
    began = time.monotonic()
    write(traces, writer)
    return (time.monotonic() - began) / len(records), time.monotonic() - began

kills, root = int(sys.argv[1]), Path(sys.argv[2])
def folder(number):
    traces = root / str(number)
    traces.mkdir()
    return traces
case_and_seal_s(folder("first"))
(case_s, seal_s), chance = case_and_seal_s(folder("warm")), random.Random(kills)
moments = {"before the first case": 0, "between cases": 0, "while sealing": 0, "after the end": 0}
for number in range(kills):
    traces = folder(number)
    after_case = number % (len(records) + 1)  # 0: before the first; the last: while sealing
    span_s = seal_s if after_case == len(records) else case_s
    acknowledged, finished = kill_one(traces, after_case, chance.uniform(0, span_s))
    sources, _ = open_traces(traces)
    assert len(sources) == 1 or acknowledged == 0, (number, os.listdir(traces))
    found = {item.case_id: item for source in sources for item in source.records()}
    for record in records[:acknowledged]:
        assert same_record(found[record.case_id], record), (number, acknowledged, len(found))
    moment = ("after the end" if finished else "before the first case" if not acknowledged
              else "while sealing" if acknowledged == len(records) else "between cases")
    moments[moment] += 1
print(moments)
"""


@pytest.mark.parametrize("kills", [30, pytest.param(970, marks=pytest.mark.soak)])
@pytest.mark.timeout(600)
def test_killed_writers_lose_no_acknowledged_record(tmp_path: Path, kills: int) -> None:
    """With the 30 whole jobs of tests/mpi/test_interruption.py, the soak is 1,000 kills."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", KILL, str(kills), str(tmp_path)], text=True,
                          env=environment, capture_output=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert "'between cases': 0" not in done.stdout  # else it killed nothing that matters
