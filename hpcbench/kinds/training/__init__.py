"""Kind ``training``: optimizer steps of a model that is spread over the ranks."""

from hpcbench.kinds.registry import KindSpec

_ROOM = "hpcbench.kinds.training"
SPEC = KindSpec(
    name="training", block=f"{_ROOM}.block:TrainingBlock",
    planner_path=f"{_ROOM}.plan.planner:TrainingPlanner",
    runner_path=f"{_ROOM}.run.runner:TrainingRunner",
    deriver_path=f"{_ROOM}.derive.deriver:TrainingDeriver",
    presenter_path=f"{_ROOM}.present.presenter:TrainingPresenter",
    catalogue_path=f"{_ROOM}.plan.planner:catalogue",
    aliases=("train",), order=30)
