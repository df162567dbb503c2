"""The commands of ``scaleproof``.

Each file defines HELP (its commands and their sentences), ``add_to`` and ``act``.
"""
