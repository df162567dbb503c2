"""A folder for PYTHONPATH: Python runs its ``sitecustomize`` as it starts."""

from pathlib import Path

FOLDER = Path(__file__).parent
