"""Uptrend: RL post-training that explains itself."""
