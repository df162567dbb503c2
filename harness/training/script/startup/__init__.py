"""A folder for PYTHONPATH: Python runs its ``sitecustomize`` as it starts."""
