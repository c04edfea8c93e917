"""Tasksets that come with Uptrend; `tasks/registry.py` has the table of their names."""
