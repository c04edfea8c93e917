"""The update, the loop that repeats it, and evaluation."""
