"""``loop.py`` with a library that looks for torch before anybody imports it, as transformers and
datasets do.
"""

import importlib.util
import runpy
from pathlib import Path

assert importlib.util.find_spec("torch") is not None
runpy.run_path(str(Path(__file__).with_name("loop.py")), run_name="__main__")
