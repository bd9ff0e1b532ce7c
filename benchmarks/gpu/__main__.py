"""Start the program: `python -m gpu`, with the folder `benchmarks` on PYTHONPATH."""

import sys

from gpu.needs import lacking

if reason := lacking():
    print(f"benchmarks/gpu.sh: {reason}", file=sys.stderr)
    sys.exit(2)

from gpu.main import main  # noqa: E402 - it imports what may be missing

sys.exit(main(sys.argv[1:]))
