"""Kind ``sleep``: every rank sleeps. Importing this names the sides and loads none of them."""

from hpcbench.plugins import KindSpec

SPEC = KindSpec(
    name="sleep", block="hpcbench_sleep.block:SleepBlock",
    planner_path="hpcbench_sleep.planner:SleepPlanner",
    runner_path="hpcbench_sleep.runner:SleepRunner",
    deriver_path="hpcbench_sleep.deriver:SleepDeriver",
    presenter_path="hpcbench_sleep.presenter:SleepPresenter")
