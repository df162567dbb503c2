"""Acceptance tests of systems: contracts, their evidence, and the document that is signed."""
