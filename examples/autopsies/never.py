"""Autopsy C: a reward that is never computed, one workspace for all, and a sampler that never gets the weights.

    python examples/autopsies/never.py
    python examples/autopsies/never.py --model models/mlgym-warm --steps 20 --device cuda

Three faults of one effort on MLGym, on machine-learning tasks of the same format. Only a change of the validation score
was paid, and the model seldom validated; rollouts of a task shared a folder and a score (`shared.py`); the inference
server served the base model throughout (`benchmarks/faults/planted/sync.py`). The model `tiny` was never told of any
command, which is enough to see the faults; to see the repaired run learn, give one that can act
(`uptrend warmstart recipes/mlgym/warmstart.toml --out models/mlgym-warm`).
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
problems = ["{problem}"]
train = 64
scheme = "final"             # "validation-change" is the first fault
sandbox = "{sandbox}"
[eval]
tasks = {held_out}
every = 0
[sampling]
groups = {groups}
size = {groups}
max_tokens = {max_tokens}
max_turns = 8
context = {context}
rows = 32
[learning]
steps = {steps}
lr = 4e-5
schedule = "linear"
warmup = {warmup}
loss = "grpo"
"""


SMALL = {"problem": "titanic", "groups": 8, "max_tokens": 96, "context": 2048}
# It needs more tokens for the same text, and probing it shall not take long.
TINY = {"problem": "prisonersDilemma", "groups": 3, "max_tokens": 260, "context": 4000}


def count_validated(path: Path) -> str:
    """Count the rollouts of a run that asked for their score."""
    rows = Run(path).rollouts()["messages"].to_pylist()
    asked = sum(any(m["role"] == "assistant" and "validate" in m["content"].split() for m in row) for row in rows)
    return f"{asked} of {len(rows):,} rollouts validated."


def main() -> None:
    """Train with each fault, ask the doctor, and train without any where the model can act."""
    from benchmarks.faults.planted.sync import frozen  # story has put the repository on the path

    given = options(__doc__, "never", steps=8, model="tiny", sandbox="auto")
    is_tiny = given.model == "tiny"
    held_out = 40 if given.steps >= 10 else 4
    recipe = write_recipe(
        given, RECIPE, evaluations=1, warmup=2, held_out=held_out, model=given.model, sandbox=given.sandbox,
        **(TINY if is_tiny else SMALL),
    )  # fmt: skip

    say("GRPO with a reward that waits for a command.")
    # As in that effort, a model that was never shown the command: untaught, where a taught one was given.
    untaught = "tiny" if is_tiny else "smollm2-135m"
    unpaid = attempt(recipe, "unpaid", "tasks.scheme=validation-change", f"model.name={untaught}")
    say(count_validated(unpaid))
    uptrend("doctor", unpaid)
    say("Fixed: every rollout is scored at its end. But all rollouts of a task work in one folder.")
    shared = attempt(recipe, "shared", "tasks.name=examples.autopsies.shared:SharedWorkspace")
    uptrend("doctor", shared)
    say("Fixed: a folder each. But now the sampler never gets the weights.")
    stale = attempt(recipe, "stale", alter=frozen)
    uptrend("doctor", stale)
    if is_tiny:
        say("The repaired run needs a model that can act: --model models/mlgym-warm.")
        return
    say("Fixed too: the sampler loads what the learner sends. Nothing else is changed.")
    well = attempt(recipe, "fixed")
    uptrend("doctor", well)
    title = "No reward, one workspace, old weights, and none of these"
    uptrend("plot", unpaid, shared, stale, well, "--out", given.out / "autopsy.png", "--title", title)


if __name__ == "__main__":
    main()
