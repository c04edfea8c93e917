"""Autopsy C: a reward that is never computed, one workspace for all, and a sampler that never gets
the weights.

    uptrend warmstart recipes/mlgym/warmstart.toml --out models/mlgym-warm
    python examples/autopsies/never.py --model models/mlgym-warm --device cuda
    python examples/autopsies/never.py --only unpaid --untaught tiny --context 3600 --probe no

Three faults of one effort on MLGym, on machine-learning tasks of the same format. Only a change of
the validation score was paid, and the model never validated: `--untaught` was not shown how.
Rollouts of a task shared a folder and a score (`shared.py`). The inference server served the base
model throughout (`benchmarks/faults/planted/sync.py`). Whole, with SmolLM2-135M, it wants a GPU.
"""

from pathlib import Path

from story import attempt, options, say, uptrend, write_recipe

from uptrend.records import Run

RECIPE = """
seed = {seed}
[model]
name = "{model}"
[tasks]
name = "mlgym"
problems = ["titanic"]
train = 64
scheme = "final"             # "validation-change" is the first fault
sandbox = "{sandbox}"
[eval]
tasks = {held_out}
every = 0
[sampling]
groups = 8
size = 8
max_tokens = 96
max_turns = 8
context = {context}
rows = 64
[learning]
steps = {steps}
lr = 4e-5
schedule = "linear"
warmup = {warmup}
loss = "grpo"
"""


def count_validated(path: Path) -> str:
    """Count the rollouts of a run that asked for their score."""
    rows = Run(path).rollouts()["messages"].to_pylist()
    asked = sum(
        any(m["role"] == "assistant" and "validate" in m["content"].split() for m in row)
        for row in rows
    )
    return f"{asked} of {len(rows):,} rollouts validated."


def main() -> None:
    """Train with each fault, ask the doctor, and train without any."""
    from benchmarks.faults.planted.sync import frozen  # story has put the repository on the path

    more = {
        "model": "models/mlgym-warm",
        "untaught": "smollm2-135m",
        "sandbox": "auto",
        "only": "",
        "probe": "yes",
    }
    more["context"] = "2048"  # tiny needs 3600 for the same text
    given = options(__doc__, "never", steps=8, **more)
    held_out = 20 if given.steps >= 8 else 4
    recipe = write_recipe(
        given,
        RECIPE,
        evaluations=1,
        warmup=2,
        held_out=held_out,
        model=given.model,
        sandbox=given.sandbox,
        context=given.context,
    )
    attempts = {
        "unpaid": (
            "GRPO with a reward that waits for a command.", None,
            ("tasks.scheme=validation-change", f"model.name={given.untaught}"),
        ),
        "shared": (
            "Fixed: every rollout is scored at its end. But all rollouts of a task work in one folder.", None,
            ("tasks.name=examples.autopsies.shared:SharedWorkspace",),
        ),
        "stale": ("Fixed: a folder each. But now the sampler never gets the weights.", frozen, ()),
        "fixed": ("Fixed too: the sampler loads what the learner sends. Nothing else is changed.", None, ()),
    }  # fmt: skip
    runs = []
    for name, (words, alter, sets) in attempts.items():
        if given.only in ("", name):
            say(words)
            runs.append(attempt(recipe, name, *sets, alter=alter, preflight=given.probe == "yes"))
            say(count_validated(runs[-1]))
            uptrend("doctor", runs[-1])
    title = "No reward, one workspace, old weights, and none of these"
    uptrend("plot", *runs, "--out", given.out / "autopsy.png", "--title", title)


if __name__ == "__main__":
    main()
