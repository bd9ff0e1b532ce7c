"""Kind ``memory``: the memory use of each rank of a training, beside its prediction."""

from hpcbench.kinds.registry import KindSpec

_ROOM = "hpcbench.kinds.memory"
SPEC = KindSpec(
    name="memory", block=f"{_ROOM}.block:MemoryBlock",
    planner_path=f"{_ROOM}.plan:MemoryPlanner",
    runner_path=f"{_ROOM}.run:MemoryRunner",
    deriver_path=f"{_ROOM}.derive:MemoryDeriver",
    presenter_path=f"{_ROOM}.present:MemoryPresenter", order=50, in_every_summary=False)
