"""Puts this folder on the path, so that its tests can import `small_sums`."""
