"""The folder that ``PYTHONPATH`` names, so that Python runs its ``sitecustomize`` at startup."""

from pathlib import Path

FOLDER = Path(__file__).parent
