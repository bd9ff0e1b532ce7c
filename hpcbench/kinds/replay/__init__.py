"""Kind ``replay``: the recorded calls of a job in their recorded order (docs/replay.md)."""

from hpcbench.kinds.registry import KindSpec

_ROOM = "hpcbench.kinds.replay"
SPEC = KindSpec(
    name="replay", block=f"{_ROOM}.block:ReplayBlock",
    planner_path=f"{_ROOM}.plan:ReplayPlanner", runner_path=f"{_ROOM}.run:ReplayRunner",
    deriver_path=f"{_ROOM}.derive:ReplayDeriver",
    presenter_path=f"{_ROOM}.present:ReplayPresenter", order=60, in_every_summary=False)
