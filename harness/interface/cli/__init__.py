"""The program ``scaleproof``. Each file of ``commands/`` adds its commands."""
