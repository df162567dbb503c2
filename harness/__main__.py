"""``python -m harness`` is ``scaleproof``."""

from harness.interface.cli.main import main

raise SystemExit(main())
