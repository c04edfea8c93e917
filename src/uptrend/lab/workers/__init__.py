"""Workers that make runs: processes of this machine, or tasks of a Ray cluster. The same command either way."""
