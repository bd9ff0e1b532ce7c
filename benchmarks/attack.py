"""Does anything that a file can hold make a command hang, fill the memory, or end in a traceback?

    python benchmarks/attack.py [--seconds 120] [--seed 0] [--kinds sweeps,lines,...]

Draws bad input of each kind in turn (tests/bad_inputs.py), each call in a child under limits: sweep
files, command lines, results whose bytes or whose numbers are other ones, runs with spoilt traces,
records and tables of other programs, and little packed text that means much. Held: an exit code
that is documented, one short complaint, and an end within 30 s of CPU time and 1 GiB. Then jobs of
real ranks (tests/bad_jobs.py): launches of ranks that do not belong together, and files of
functions that harm their process. Prints a table of held of tried, after each input that was not
held; ends with 1 if there is one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = {"sweeps": 6, "lines": 6, "results": 6, "forged": 6, "run": 1, "records": 12,
         "packed": 1, "launches": 1, "functions": 1}
"""Kind -> inputs of a round."""
JOBS = ("launches", "functions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    arguments = parser.parse_args()
    kinds = {kind: KINDS[kind] for kind in arguments.kinds.split(",")}
    end, tried = time.monotonic() + arguments.seconds, dict.fromkeys(kinds, 0)
    held = dict(tried)
    turns = ((turn, kind) for turn in range(10**6) for kind in kinds)
    while time.monotonic() < end or not all(tried.values()):
        turn, kind = next(turns)
        lines = attacked(kind, f"{arguments.seed}.{turn}", kinds[kind])
        tried[kind] += kinds[kind]
        held[kind] += kinds[kind] - len(lines)
        for line in lines:
            print(f"{kind} {arguments.seed}.{turn}: {line}", flush=True)
    print("\n".join(f"{kind:10} {held[kind]:6} of {tried[kind]:6} held" for kind in kinds))
    sys.exit(held != tried)


def attacked(kind: str, seed: str, count: int) -> list[str]:
    """Return a line for each of ``count`` inputs that was not held. Raises CalledProcessError where
    the child itself ended, which no input may bring about."""
    script = "bad_jobs.py" if kind in JOBS else "bad_input_process.py"
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / script), kind, seed, str(count), folder],
            env=env, stdout=subprocess.PIPE, text=True, check=True)
    *bad, _ = done.stdout.splitlines()
    return [line[:3000] for line in bad]


if __name__ == "__main__":
    main()
