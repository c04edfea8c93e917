"""Logs of other trainers as views of runs: `read_views(path)` recognises the format."""
