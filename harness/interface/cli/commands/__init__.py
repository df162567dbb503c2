"""The verbs of ``scaleproof``. One file is one noun: HELP (its verbs), ``add_to`` and ``act``."""
