"""Probes: what only the model itself can answer, before training."""
