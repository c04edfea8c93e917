"""Logs of other trainers as views of runs: `read_views(path)` recognizes the format, and
`read_pasted_views(data)` that of a text without a file.
"""

from uptrend.bridge.importers.detect import read_pasted_views, read_views

__all__ = ["read_pasted_views", "read_views"]
