"""Journals that people kept by hand, brought into a lab: what has a known form is recognized, the rest stays prose."""
