"""The code that one rank runs during one launch. Each kind of task has its own file."""
