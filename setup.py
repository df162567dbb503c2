"""Put the default suites and the sample runs, which lie beside the package, into the wheel."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

#: Folders of the repository, and their place in the package.
SHIPPED = {"suites": "harness/shipped/suites", "results/samples": "harness/shipped/samples"}


class Build(build_py):
    def run(self) -> None:
        super().run()
        for source, target in () if self.editable_mode else SHIPPED.items():
            shutil.copytree(
                source,
                Path(self.build_lib, target),
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("__pycache__", "*.pyc", "report.html"),
            )


setup(cmdclass={"build_py": Build})
