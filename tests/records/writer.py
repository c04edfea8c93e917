"""A process that writes a run directory for as long as it lives; tests kill it."""

import itertools
import random
import sys
from pathlib import Path

from synthetic import evaluation_of, info_of, line_of, metrics_of, rollout_of
from uptrend.records import RunDirectory, rollouts_table


def main() -> None:
    """Create or continue the run at argv[1]; one line on stdout once the lock is held."""
    path = Path(sys.argv[1])
    exists = (path / "run.json").exists()
    directory = RunDirectory.reopen(path) if exists else RunDirectory.create(path, info_of(path.name))
    with directory:
        metrics = path / "metrics.jsonl"
        first = 1 + metrics.read_bytes().count(b"\n") if metrics.exists() else 1
        directory.event("resumed" if exists else "started", step=first - 1)
        print("writing", flush=True)
        for step in itertools.count(first):
            rollouts = [rollout_of(step, f"g{i}") for i in range(200)]
            directory.rollouts(step, rollouts_table(path.name, rollouts))
            directory.metrics({**metrics_of(step, 100, random.Random(step)), "padding": "x" * 20_000})
            directory.evaluation(line_of(evaluation_of(step, 1, 2)), rollouts_table(path.name, rollouts[:2]))


if __name__ == "__main__":
    main()
