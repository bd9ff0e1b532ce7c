"""Kind ``hardware``: the rates of this machine, one test at a time."""

from hpcbench.kinds.registry import KindSpec

_ROOM = "hpcbench.kinds.hardware"
SPEC = KindSpec(
    name="hardware", block=f"{_ROOM}.block:HardwareBlock",
    planner_path=f"{_ROOM}.plan.planner:HardwarePlanner",
    runner_path=f"{_ROOM}.run:HardwareRunner",
    deriver_path=f"{_ROOM}.derive:HardwareDeriver",
    presenter_path=f"{_ROOM}.present:HardwarePresenter",
    catalogue_path=f"{_ROOM}.plan.planner:catalogue",
    aliases=("machine",), order=40, in_every_summary=False)
