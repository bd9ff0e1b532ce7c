"""What NVML reports of each GPU that torch sees, beside what is expected of any data centre's GPU.

    python benchmarks/gpu/telemetry.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu.machine import look
from gpu.record import write_json

EXPECTED = ("pci", "power_limit_w", "max_mhz.sm", "max_mhz.memory", "pcie.generation",
            "now.sm_mhz", "now.memory_mhz", "now.celsius", "now.throttled_by")


def main() -> int:
    """Write verdicts.json in the folder."""
    machine = look()
    if machine.broken:
        print(machine.broken)
        return 1
    print(json.dumps(machine.details, indent=1))
    verdict, detail = judged(machine.names, machine.details)
    write_json(Path(sys.argv[1]) / "verdicts.json",
               {"telemetry": {"verdict": verdict, "detail": detail}})
    return 0


def judged(names: Sequence[str], details: Sequence[Mapping[str, Any] | None]) -> tuple[str, str]:
    """Return the verdict: everything that is expected was read of every GPU."""
    untold = sorted({key for detail in details for key in EXPECTED if _value(detail, key) is None})
    if untold:
        return "missed", f"not read: {', '.join(untold)}"
    first = details[0]
    return "met", (f"{len(names)} x {names[0]}: SM at {_value(first, 'now.sm_mhz')} of "
                   f"{_value(first, 'max_mhz.sm')} MHz, {_value(first, 'power_limit_w'):g} W, "
                   f"{_value(first, 'now.celsius')} degrees Celsius")


def _value(detail: Mapping[str, Any] | None, path: str) -> Any:
    value: Any = detail
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


if __name__ == "__main__":
    sys.exit(main())
