"""From settings to a result: solve, resume, refine."""
