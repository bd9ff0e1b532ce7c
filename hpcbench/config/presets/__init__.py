"""Sweeps for known hardware: one YAML file a machine, with the source of each of its numbers.

Peaks are not typed there: `filled` takes them from `operations.peaks`.

To add a machine, write its file here and its name into ``HARDWARE``. To add a kind of case, write
a block of it into each file. ``tests/unit/test_jobs.py`` checks what a file must hold."""

HARDWARE = ("cpu", "v100-nvlink", "a100-nvlink", "h100-nvlink", "h200-nvlink", "b200-nvlink",
            "a10-cluster", "m4-metal")
"""Values of ``gen-config --hardware``: names of files without their suffix."""
