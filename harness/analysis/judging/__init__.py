"""The judge: code that turns the launches of a run into verdicts."""
