"""Compare what ten short runs record before and after a change that should change no value.

    python scripts/same_values.py record /tmp/before     # with the code as it was
    python scripts/same_values.py compare /tmp/before    # with the code as it is: exit 1 where a value differs
    python scripts/same_values.py compare /tmp/before --with /tmp/after    # two recordings

Recipes of this repository, cut to five steps of `tiny` on one thread; one is resumed, one trains in
two processes. Every recorded value counts: config, metrics, rollouts down to the token,
evaluations, events, findings, checkpoints with the optimizer's state; all but durations, memory,
and when and in which process it ran. Logs, which are text, are not read.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
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
# `tiny` knows arithmetic and calls no tools: no rollout of several turns would earn anything, and
# no weight would change. The models in this folder know how a call is written, and little else.
TAUGHT = ROOT / "tests" / "data" / "runs02"
MUSIQUE = (
    f'model.name="{TAUGHT}/models/musique"',
    'model.chat="auto"',
    'tasks.file="musique.jsonl"',  # a relative path, because the tasks' hash depends on it
    'eval.file="musique.jsonl"',
    "tasks.train=24",
    "tasks.returned=1",
    "eval.returned=1",
)
# What a run is called, its recipe, and what else is set. Between them: every loss, every KL
# estimator, both references, minibatches, corrections, rollouts of several turns, programs in a
# sandbox, rewards of the user's own, sampling ahead.
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tiny": ("recipes/tiny.toml", ("eval.attempts=2", "sampling.resample=1")),
    "baseline": ("recipes/arithmetic/baseline.toml", ("sampling.max_tokens=6",)),
    "stages": (
        "recipes/arithmetic/mixed_curriculum.toml",
        (
            "sampling.max_tokens=6",
            'learning.loss="bnpo"',
            'learning.kl.estimator="k2"',
            "learning.mask_truncated=true",
        ),
    ),
    "rich": (
        "recipes/arithmetic/rich_reward.toml",
        (
            'learning.loss="cispo"',
            "learning.clip_high=5",
            "learning.minibatches=2",
            "learning.entropy=0.01",
        ),
    ),
    "lora": (
        "recipes/tiny.toml",
        (
            "model.lora={ r = 4, alpha = 8.0 }",
            "learning.kl.beta=0.1",
            'learning.kl.estimator="k1"',
            "learning.skip_dead=false",
            'learning.loss="dapo"',
        ),
    ),
    "gspo": (
        "recipes/tiny.toml",
        (
            'learning.loss="gspo"',
            "learning.clip_low=0.2",
            "learning.clip_high=0.2",
            "learning.updates=2",
            "sampling.top_k=20",
            'learning.correction="sequence"',
            'learning.baseline="leave_one_out"',
        ),
    ),
    "countdown": ("recipes/countdown/countdown.toml", ("sampling.max_tokens=8",)),
    "gsm8k": (
        "recipes/gsm8k/gsm8k.toml",
        (
            "sampling.max_tokens=8",
            "sampling.overlong=4",
            "sampling.ahead=1",
            'learning.correction="token"',
        ),
    ),
    "turns": (
        "recipes/musique/atlas.toml",
        (
            *MUSIQUE,
            "sampling.max_turns=4",
            "sampling.max_tokens=16",
            "sampling.context=200",
            "sampling.temperature=0.5",
            'learning.loss="dr_grpo"',
            'learning.scale="none"',
            'learning.credit="turn"',
        ),
    ),
    "programs": (
        "recipes/mlgym/research.toml",
        (
            f'model.name="{TAUGHT}/models/mlgym"',
            'model.chat="auto"',
            "tasks.train=8",
            "tasks.dense={ clean = 0.5 }",
            "sampling.max_turns=3",
            "sampling.max_tokens=40",
            "sampling.temperature=0.5",  # hotter, it writes pipes, whose programs print in any order
            "sampling.groups=2",
            "eval.tasks=2",
        ),
    ),
}
RESUMED = {"tiny": 7}
"""Runs that go on after their five steps, and to which step."""
PARALLEL = {"baseline": 2}
"""Runs of several processes, and how many."""

# Places of values that differ between two runs of the same code: what a clock and the memory say.
MEASURED = re.compile(
    r"run\.json created"
    r"|(metrics|evals|events)\.jsonl:\d+ (time|pid|seconds|((commands/)?seconds|time|memory)/\S+)"
    r"|(rollouts|evals)/\S+\.parquet:\d+ (commands \d+ )?seconds"
    # Generators that nothing of ours draws from, seeded by the system.
    r"|checkpoints/\S+/state\.json (random|others \d+) (python|numpy)"
    # Sizes and checksums of files that name the model's folder, and of all of them: the files are
    # compared themselves.
    r"|checkpoints/\S+/state\.json (checksum|files adapter/(adapter_config\.json|README\.md))"
)
ABSENT = object()
"""Stands for a value that one side does not have; equal to no recorded value."""
CHECKOUT = "checkout.txt"
"""File beside the runs with the folder of the code that made them, which some of their values
name.
"""
SHOWN = 5
"""Most differing values of a run that are listed."""


def record(folder: Path, names: Sequence[str]) -> None:
    """Make the runs, one after the other, and diagnose each."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CHECKOUT).write_text(str(ROOT))
    shutil.copy(TAUGHT / "musique.jsonl", folder)
    for name in names:
        recipe, more = RUNS[name]
        print(f"{name}: {recipe}", file=sys.stderr, flush=True)
        settings = [word for setting in (*SMALL, *more) for word in ("--set", setting)]
        options = ["--runs", ".", "--name", name, "--no-preflight", "--quiet"]
        processes = PARALLEL.get(name, 1)
        _uptrend(folder, ["train", str(ROOT / recipe), *options, *settings], processes)
        if name in RESUMED:
            further = ["--set", f"learning.steps={RESUMED[name]}"]
            _uptrend(folder, ["train", "--resume", name, "--quiet", *further])
        _uptrend(folder, ["doctor", name])  # writes findings.json
        if _has_only_failures(folder / name):
            sys.exit(f"All rollouts of {name} failed, so its values prove little: {folder / name}")


def _uptrend(folder: Path, words: list[str], processes: int = 1) -> None:
    # From the folder, so that no recorded name of a run depends on where the folder lies.
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, "-P", *(launcher if processes > 1 else []), "-m", "uptrend", *words]
    # PEFT writes a set of names, whose order is the hashes'.
    fixed = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}
    environment = os.environ | fixed
    subprocess.run(command, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL)


def _has_only_failures(run: Path) -> bool:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return all(
        line["sampling/failed/count"] == line["sampling/rollouts/count"] > 0 for line in lines
    )


def values_of(folder: Path) -> dict[str, Any]:
    """Return everything that a run recorded, by where it stands."""
    # Files as they are, not through the package's own readers: those are what may change.
    import pyarrow.parquet as pq

    values: dict[str, Any] = {}
    checkout = _checkout_of(folder)
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir():
            continue
        if name.startswith("logs/"):
            values[name] = "a file"
        elif path.suffix == ".json":
            values |= flatten(name, json.loads(path.read_text().replace(checkout, CHECKOUT)))
        elif path.suffix == ".jsonl":
            text = path.read_text().replace(checkout, CHECKOUT)
            for number, line in enumerate(filter(None, text.split("\n"))):
                values |= flatten(f"{name}:{number}", json.loads(line))
        elif path.suffix == ".parquet":
            table = pq.read_table(path)
            values[f"{name} columns"] = str(table.schema)
            for number, row in enumerate(table.to_pylist()):
                values |= flatten(f"{name}:{number}", row)
        else:
            data = path.read_bytes().replace(checkout.encode(), CHECKOUT.encode())
            values[name] = hashlib.sha256(data).hexdigest()
    return {name: value for name, value in values.items() if not MEASURED.fullmatch(name)}


def _checkout_of(folder: Path) -> str:
    path = folder.parent / CHECKOUT
    return path.read_text() if path.exists() else str(ROOT)


def flatten(name: str, value: Any) -> dict[str, Any]:
    """Return the leaves of a value by their names."""
    return dict(_leaves(name, value))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(f"{name} {key}", item)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(f"{name} {number}", item)
    else:
        yield name, value


def differences(before: Path, after: Path, names: Sequence[str]) -> list[str]:
    """Return a line for each value that differs, a few for each run."""
    lines: list[str] = []
    for name in names:
        old = values_of(before / name)
        new = values_of(after / name)
        keys = [
            key for key in old | new if not _are_same(old.get(key, ABSENT), new.get(key, ABSENT))
        ]
        print(f"{name}: {len(old)} values before, {len(new)} after, {len(keys)} differ", flush=True)
        for key in keys[:SHOWN]:
            lines.append(f"{name} {key}: {_excerpt(old, key)} → {_excerpt(new, key)}")
    return lines


def _are_same(one: Any, other: Any) -> bool:
    # As text, in which NaN equals itself, and 1 differs from 1.0 and from true.
    return one is other or (ABSENT not in (one, other) and repr(one) == repr(other))


def _excerpt(values: dict[str, Any], key: str) -> str:
    return f"{values[key]!r:.80}" if key in values else "absent"


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("folder", type=Path, help="Folder of the runs before the change.")
    parser.add_argument("--only", action="append", choices=list(RUNS), help="A run; repeatable.")
    parser.add_argument(
        "--with",
        dest="after",
        type=Path,
        help="Folder of runs after the change, in place of new ones.",
    )
    options = parser.parse_args()
    names = options.only or list(RUNS)
    if options.what == "record":
        record(options.folder, names)
        return 0
    for folder in filter(None, (options.folder, options.after)):
        missing = [name for name in names if not (folder / name / "run.json").is_file()]
        if missing:
            parser.error(
                f"{folder} has no run {', '.join(missing)}; record it, or compare others with --only."
            )
    if options.after:
        lines = differences(options.folder, options.after, names)
    else:
        with tempfile.TemporaryDirectory(prefix="uptrend-same-") as folder:
            record(Path(folder), names)
            lines = differences(options.folder, Path(folder), names)
    print("\n".join(lines) or "Nothing differs.")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
