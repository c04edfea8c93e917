"""How often the lab's verdicts are wrong, by simulation: `python -m benchmarks.verdicts 3000`."""
