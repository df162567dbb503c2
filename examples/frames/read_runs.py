"""Read runs as pandas DataFrames. Open this file as a notebook, or run it as a program.

python examples/frames/read_runs.py results/samples/ddp-nano results/samples/ddp-nano-again
"""

# %% The runs to read: folders with a record.json
import sys

from harness.interface import frames

runs = sys.argv[1:] or ["results/samples/ddp-nano", "results/samples/ddp-nano-again"]

# %% A row for each launch: its purpose, its status, its throughput, bytes and memory
launches = frames.launches(runs)
timed = launches[launches.purpose == "timed"]
print(timed.groupby(["case", "run"]).throughput.describe()[["count", "mean", "std"]].round(1))

# %% Launch-to-launch variation of the same case. This variation limits the precision of verdicts.
spread = timed.groupby("case").throughput.agg(lambda rates: rates.std() / rates.mean())
print(spread.map("{:.1%}".format).rename("between launches"))

# %% A row for each rank and step; warm-up steps have kept = False
steps = frames.steps(runs)
kept = steps[steps.kept & (steps.purpose == "timed")]
print(kept.groupby("case").step_s.quantile([0.5, 0.95, 0.99]).unstack().mul(1e3).round(2))

# %% A row for each world size: speedup and efficiency with their intervals
points = frames.points(runs)
columns = ["case", "against", "n", "speedup", "efficiency", "efficiency_low", "efficiency_high"]
print(points[columns].round(3).to_string(index=False))

# %% A row for each rank, step and term of a profiled launch, in ns; the terms sum to the step
budgets = frames.budgets(runs)
parts = budgets.groupby(["case", "term"]).ns.sum().unstack()
print(parts.div(parts.sum(axis=1), axis=0).map("{:.1%}".format).to_string())

# %% A row for each verdict of the record
verdicts = frames.verdicts(runs)
print(verdicts[["status", "case", "metric", "value", "bound", "reason"]].to_string(index=False))
