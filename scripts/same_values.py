"""Compare what ten short runs record before and after a change that should change no value.

    python scripts/same_values.py record /tmp/before     # with the code as it was
    python scripts/same_values.py compare /tmp/before    # with the code as it is: exit 1 where a value differs

Recipes of this repository, cut to five steps of `tiny` on one thread. Every recorded value counts: metrics, rollouts
down to the token, evaluations, findings and final weights; all but durations, memory, and when and where it ran.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    'model.name="tiny"',
    "model.chat=false",
    "learning.steps=5",
    "learning.lr=1e-4",
    "learning.warmup=1",
    "sampling.groups=4",
    "sampling.size=4",
    "eval.tasks=8",
    "eval.every=5",
    "checkpoints.every=5",
    "compute.threads=1",
    'compute.device="cpu"',
    "doctor.live=false",
)
# What a run is called, its recipe, and what else is set. Between them: every loss, both references, minibatches,
# corrections, rollouts of several turns, programs in a sandbox, rewards of the user's own, sampling ahead.
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tiny": ("recipes/tiny.toml", ()),
    "baseline": ("recipes/arithmetic/baseline.toml", ("sampling.max_tokens=6",)),
    "stages": ("recipes/arithmetic/mixed_curriculum.toml", ("sampling.max_tokens=6",)),
    "rich": (
        "recipes/arithmetic/rich_reward.toml",
        ('learning.loss="cispo"', "learning.clip_high=5", "learning.minibatches=2"),
    ),
    "lora": (
        "recipes/tiny.toml",
        (
            "model.lora={ r = 4, alpha = 8.0 }",
            "learning.kl.beta=0.1",
            "learning.skip_dead=false",
            'learning.loss="dapo"',
        ),
    ),
    "gspo": ("recipes/tiny.toml", ('learning.loss="gspo"', "learning.updates=2", "sampling.top_k=20")),
    "countdown": ("recipes/countdown/countdown.toml", ("sampling.max_tokens=8",)),
    "gsm8k": ("recipes/gsm8k/gsm8k.toml", ("sampling.max_tokens=8", "sampling.overlong=4")),
    "turns": (
        "recipes/musique/atlas.toml",
        ("sampling.max_turns=2", "sampling.max_tokens=24", "sampling.context=2048", "tasks.train=40"),
    ),
    "programs": (
        "recipes/mlgym/research.toml",
        ("sampling.max_turns=2", "sampling.max_tokens=24", "sampling.groups=2", "eval.tasks=2", "tasks.train=8"),
    ),
}
# Parts of names of what differs between two runs of the same code.
NOT_COMPARED = ("seconds", "memory/", "time", "created", "pid")


def train(to: Path, names: list[str]) -> None:
    """Make the runs, one after the other."""
    for name in names:
        recipe, more = RUNS[name]
        sets = [word for setting in (*SMALL, *more) for word in ("--set", setting)]
        command = [sys.executable, "-P", "-m", "uptrend", "train", str(ROOT / recipe), "--runs", str(to)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        print(f"{name}: {recipe}", file=sys.stderr, flush=True)
        subprocess.run(
            [*command, "--name", name, "--no-preflight", "--quiet", *sets],
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
        )


def values_of(folder: Path) -> dict[str, Any]:
    """Return everything that a run recorded, by where it stands."""
    # Files as they are, not through the package's own readers: those are what may change.
    import pyarrow.parquet as pq

    values: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        values |= flatten(path.name, json.loads(path.read_text()))
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines()):
            values |= flatten(f"{path.name}:{number}", json.loads(line))
    for path in sorted(folder.rglob("*.parquet")):
        for number, row in enumerate(pq.read_table(path).to_pylist()):
            values |= flatten(f"{path.relative_to(folder)}:{number}", row)
    for path in sorted(folder.glob("checkpoints/*/*/*.safetensors")):
        values[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return values


def flatten(name: str, value: Any) -> dict[str, Any]:
    """Return the leaves of a value by their names."""
    return dict(_leaves(name, value))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if not any(part in str(key) for part in NOT_COMPARED):
                yield from _leaves(f"{name} {key}", item)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(f"{name} {number}", item)
    else:
        yield name, value


def differences(before: Path, after: Path, names: list[str]) -> list[str]:
    """Return a line for each value that differs, a few for each run."""
    lines: list[str] = []
    for name in names:
        old = values_of(before / name)
        new = values_of(after / name)
        # As text, in which NaN equals itself.
        keys = [key for key in old | new if repr(old.get(key, "none")) != repr(new.get(key, "none"))]
        print(f"{name}: {len(old)} values before, {len(new)} after, {len(keys)} differ", flush=True)
        lines += [f"{name} {key}: {old.get(key, 'none')!r:.80} → {new.get(key, 'none')!r:.80}" for key in keys[:5]]
    return lines


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path, help="Folder of the runs before the change.")
    parser.add_argument("--only", action="append", choices=list(RUNS), help="A run; repeatable.")
    given = parser.parse_args()
    names = given.only or list(RUNS)
    if given.what == "record":
        train(given.folder, names)
        return 0
    with tempfile.TemporaryDirectory(prefix="uptrend-same-") as folder:
        train(Path(folder), names)
        lines = differences(given.folder, Path(folder), names)
    print("\n".join(lines) or "Nothing differs.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
