"""``python -m harness`` is ``scaleproof``."""

from harness.cli import main

raise SystemExit(main())
