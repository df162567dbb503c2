"""What to choose: the micro-batch that fits, the codec that pays, the remedy that helps."""
