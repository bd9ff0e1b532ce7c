"""``python -m``: print what a file of benchmarks declares, as the last line, for the planner.

What the file itself prints goes to stderr.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    kept = os.dup(1)
    os.dup2(2, 1)
    from hpcbench.operations.functions import describe

    text = describe(sys.argv[1])
    sys.stdout.flush()
    os.write(kept, text.encode())
    os._exit(0)  # what the file has started may never end


if __name__ == "__main__":
    main()
