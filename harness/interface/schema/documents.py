"""What every verb prints with ``--json``: its documents, as types."""
