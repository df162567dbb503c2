"""From ranks' samples to a launch's figures."""
