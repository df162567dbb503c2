"""The programs of this package that others start, by the names that stand in command lines.

Nothing imports them from here: they are the other side of a border. Leftovers of earlier runs are
found by ``TRAINING``, which every agent and rank has in its command line.
"""

from pathlib import Path

TRAINING = "harness.training"
AGENT = f"{TRAINING}.agent.agent"
TORCHRUN_RANK = f"{TRAINING}.rank.under_torchrun"
SWITCH = "harness.launch.emulation.switch"

#: The folder of this package, and the one that a program needs on its path to import it.
PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parent
