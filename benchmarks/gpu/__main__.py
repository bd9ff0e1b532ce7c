"""Start the program: `python -m gpu`, with the folder `benchmarks` on PYTHONPATH."""

import sys

from gpu.main import main

sys.exit(main(sys.argv[1:]))
