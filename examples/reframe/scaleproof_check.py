"""A case of scaleproof as a test of ReFrame: its verdict is the sanity, its figures are there, too.

    reframe -c examples/reframe/scaleproof_check.py -r --performance-report \
        -S case=ddp/decoder-nano/weak -S ranks=--cpus=2 -S rules=suites/thresholds.toml

``scaleproof`` has to be on the path of the environment that the test runs in.
"""

import json
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn


@rfm.simple_test
class ScaleproofCheck(rfm.RunOnlyRegressionTest):
    """PASS is a pass, FAIL and ERROR fail, what is undecided is skipped with its reason."""

    descr = "does training scale on these ranks?"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    case = variable(str, value="ddp/decoder-nano/weak")
    ranks = variable(str, value="--cpus=2")
    rules = variable(str, value="")
    time_limit = "30m"
    local = True  # scaleproof asks Slurm for nodes itself: ranks=--engine=slurm

    @run_before("run")
    def command(self):
        self.executable = "scaleproof"
        self.executable_opts = ["run", self.case, self.ranks, "--results=results"]
        if self.rules:
            self.executable_opts.append(f"--thresholds={Path(self.rules).absolute()}")
        self.postrun_cmds = ["scaleproof report results/runs/*/* --summary --json > summary.json"]

    @run_before("sanity")
    def read(self):
        self.summary = json.loads((Path(self.stagedir) / "summary.json").read_text())
        if self.summary["exit"] == 10:
            self.skip(self.summary["headline"])

    @sanity_function
    def verdict(self):
        """5: it was measured, and no rule applies; its figures are worth keeping all the same."""
        return sn.assert_in(self.summary["exit"], (0, 5), msg=self.summary["headline"])

    @run_before("performance")
    def figures(self):
        """Each verdict's value, and both ends of its interval, where there are any."""
        for v in self.summary["verdicts"]:
            stand_in = " (stand-in)" if v["stand_in"] else ""
            name = f"{v['case']} {v['metric']} v {v['against']}{stand_in}"
            for ending, value in (("", v["value"]), (" low", v["low"]), (" high", v["high"])):
                if value is not None:
                    figure = sn.make_performance_function(sn.defer(value), "ratio")
                    self.perf_variables[name + ending] = figure
