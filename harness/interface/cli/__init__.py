"""The command ``scaleproof``. One file adds one verb."""
