"""Run a case of scaleproof as a ReFrame test: the verdicts decide sanity, the values performance.

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
    """A test that passes on PASS, fails on FAIL or ERROR, and is skipped on INCONCLUSIVE."""

    descr = "does training scale on these ranks?"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    case = variable(str, value="ddp/decoder-nano/weak")
    ranks = variable(str, value="--cpus=2")
    rules = variable(str, value="")
    time_limit = "30m"
    local = True  # scaleproof itself requests nodes from Slurm: ranks=--engine=slurm

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
        """Pass on exit status 0, or on 5: no threshold applies, but the values are of use."""
        return sn.assert_in(self.summary["exit"], (0, 5), msg=self.summary["headline"])

    @run_before("performance")
    def figures(self):
        """Report the value of each verdict, and both ends of its interval if it has one."""
        for v in self.summary["verdicts"]:
            stand_in = " (stand-in)" if v["stand_in"] else ""
            name = f"{v['case']} {v['metric']} v {v['against']}{stand_in}"
            for ending, value in (("", v["value"]), (" low", v["low"]), (" high", v["high"])):
                if value is not None:
                    figure = sn.make_performance_function(sn.defer(value), "ratio")
                    self.perf_variables[name + ending] = figure
