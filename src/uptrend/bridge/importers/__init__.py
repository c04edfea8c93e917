"""Logs of other trainers as views of runs: `read_views(path)` recognizes the format."""

from uptrend.bridge.importers.detect import read_views

__all__ = ["read_views"]
