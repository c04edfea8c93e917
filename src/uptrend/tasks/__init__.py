"""Tasksets: what makes tasks, plays them and scores them; and from a config to the tasks of a run."""
