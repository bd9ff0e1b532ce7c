"""Kind ``function``: functions of a user's own Python file (docs/functions.md)."""

from hpcbench.kinds.registry import KindSpec

_ROOM = "hpcbench.kinds.function"
SPEC = KindSpec(
    name="function", block=f"{_ROOM}.block:FunctionBlock",
    planner_path=f"{_ROOM}.plan:FunctionPlanner", runner_path=f"{_ROOM}.run:FunctionRunner",
    deriver_path=f"{_ROOM}.derive:FunctionDeriver",
    presenter_path=f"{_ROOM}.present:FunctionPresenter", order=50, in_every_summary=False)
