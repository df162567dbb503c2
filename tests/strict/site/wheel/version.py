"""The build of the strict device's torch, as in the ``version.py`` of a CUDA wheel."""

cuda: str | None = "13.0"
