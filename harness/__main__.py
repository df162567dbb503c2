"""Run ``scaleproof`` by ``python -m harness``."""

from harness.interface.cli.main import main

raise SystemExit(main())
