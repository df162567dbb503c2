"""What is said in other places: comments, summaries, annotations."""
