"""Does anything that a file can hold make a command hang, fill the memory, or end in a traceback?

    python benchmarks/attack.py [--seconds 120] [--seed 0]

Draws bad input of each kind in turn (tests/bad_inputs.py), each call in a child under limits: sweep
files, command lines, results whose bytes or whose numbers are other ones, runs with spoilt traces,
records and tables of other programs, and little packed text that means much. Held: an exit code
that is documented, one short complaint, and an end within 30 s of CPU time and 1 GiB. Prints held
of tried for each kind, and each input that was not held; ends with 1 if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = {"sweeps": 12, "lines": 12, "results": 12, "forged": 24, "run": 3, "records": 24,
         "packed": 1}
"""Kind -> inputs of a round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    end, tried, bad = time.monotonic() + arguments.seconds, dict.fromkeys(KINDS, 0), list[str]()
    held = dict(tried)
    for turn in range(10**6):
        for kind, count in KINDS.items():
            lines = attacked(kind, f"{arguments.seed}.{turn}", count)
            tried[kind] += count
            held[kind] += count - len(lines)
            bad += [f"{kind} {line}" for line in lines]
            print(f"{kind}: {held[kind]} of {tried[kind]} held", flush=True)
            if time.monotonic() > end and all(tried.values()):
                print("\n".join(bad) or "all inputs were held")
                sys.exit(bool(bad))


def attacked(kind: str, seed: str, count: int) -> list[str]:
    """Return a line for each of ``count`` inputs that was not held. Raises CalledProcessError where
    the child itself ended, which no input may bring about."""
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "bad_input_process.py"), kind, seed, str(count),
             folder], env=env, stdout=subprocess.PIPE, text=True, check=True)
    *bad, _ = done.stdout.splitlines()
    return [json.dumps(json.loads(line))[:500] for line in bad]


if __name__ == "__main__":
    main()
