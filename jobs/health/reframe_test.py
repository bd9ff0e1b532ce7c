"""A ReFrame test: measures a sweep, checks it by limits, and reports figures of merit.

    reframe -c jobs/health/reframe_test.py -r -S sweep=/path/sweep.yaml -S limits=/path/limits.yaml
"""

import re
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn
from reframe.core.builtins import run_before, sanity_function, variable


@rfm.simple_test
class HpcbenchCheck(rfm.RunOnlyRegressionTest):
    """Passes if the run ends with 0, and each limit holds."""

    sweep = variable(str, value="config.json")
    limits = variable(str, value="")
    ranks = variable(int, value=2)
    metric = variable(str, value="time")
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "python"

    @run_before("run")
    def set_command(self):
        self.num_tasks = self.ranks
        self.executable_opts = ["-m", "hpcbench", "run", self.sweep, "--resume", "run", "--quiet"]
        self.postrun_cmds = ["echo HPCBENCH_CODE $?"]
        if self.limits:
            self.postrun_cmds.append(f"hpcbench check run --limits {self.limits}")
        self.postrun_cmds.append(f"hpcbench export run --to fom --metric {self.metric}")

    @sanity_function
    def is_good(self):
        good = sn.assert_found(r"^HPCBENCH_CODE 0$", self.stdout)
        return sn.all([good, sn.assert_found(r"^HPCBENCH_CHECK RESULT GOOD", self.stdout)]) if (
            self.limits) else good

    @run_before("performance")
    def set_figures(self):
        output = Path(self.stagedir, sn.evaluate(self.stdout))
        rows = re.findall(r"^(\S+\.\w+): ([\d.]+) (\S+)$", output.read_text(), re.MULTILINE)
        self.perf_variables = {
            name: sn.make_performance_function(sn.defer(float(value)), unit)
            for name, value, unit in rows}
