"""What the strict device's torch was built for: as the file of a CUDA wheel says it."""

cuda: str | None = "13.0"
