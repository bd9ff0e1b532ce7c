"""Writers of the real journal, killed at random moments, sealing included: see `KILL`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import ROOT

KILL = """
import os, random, signal, struct, sys, time
from pathlib import Path
from hpcbench.reduce.intake import open_traces
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

def kill_one(traces, after_s):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        write(traces, writer)
        os._exit(0)
    os.close(writer)
    time.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    told = os.read(reader, 1000)
    os.close(reader)
    return len(told.rstrip(b"\\xff")), told.endswith(b"\\xff")

def whole_s(traces):
    began = time.monotonic()
    write(traces, os.open("/dev/null", os.O_WRONLY))
    return time.monotonic() - began

kills, root = int(sys.argv[1]), Path(sys.argv[2])
def folder(number):
    traces = root / str(number)
    traces.mkdir()
    return traces
longest_s, chance = whole_s(folder("whole")), random.Random(kills)
moments = {"before the first case": 0, "between cases": 0, "while sealing": 0, "after the end": 0}
for number in range(kills):
    traces = folder(number)
    acknowledged, finished = kill_one(traces, chance.uniform(0, 1.1 * longest_s))
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
