"""Kind ``collective``: one collective operation on one buffer."""

from hpcbench.kinds.registry import KindSpec

_ROOM = "hpcbench.kinds.collective"
SPEC = KindSpec(
    name="collective", block=f"{_ROOM}.block:CollectiveBlock",
    planner_path=f"{_ROOM}.plan:CollectivePlanner",
    runner_path=f"{_ROOM}.run:CollectiveRunner",
    deriver_path=f"{_ROOM}.derive:CollectiveDeriver",
    presenter_path=f"{_ROOM}.present:CollectivePresenter",
    catalogue_path=f"{_ROOM}.plan:catalogue",
    aliases=("comm",), order=10, in_every_summary=False)
