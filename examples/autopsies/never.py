"""Autopsy C: a reward that is never computed, and a sampler that never gets the weights.

    python examples/autopsies/never.py

Two faults of one effort on MLGym. Only a change of the validation score was paid, and the model seldom validated; and
the inference server served the base model throughout (`benchmarks/faults/planted/sync.py`). The task is
`workshop.py`: a calculation, then a command. The model is `tiny`, which answers with numbers and was never told of any
command.
"""

from pathlib import Path

from story import attempt, options, say, uptrend, write_recipe

from uptrend.records import Run

RECIPE = """
seed = {seed}
[model]
name = "tiny"
[tasks]
name = "examples.autopsies.workshop:Workshop"
operations = ["+", "-"]
high = 9
train = 150
pays = "end"                 # "validate" is the fault
[eval]
name = "examples.autopsies.workshop:Workshop"
operations = ["+", "-"]
high = 9
tasks = {held_out}
every = {every}
[sampling]
groups = 32
size = 8
temperature = 0.7
max_tokens = 10              # validate has eight characters
max_turns = 2
[learning]
steps = {steps}
lr = 2.5e-4
schedule = "linear"
warmup = {warmup}
beta2 = 0.99
loss = "grpo"
"""


def count_validated(path: Path) -> str:
    """Count the rollouts of a run that asked for their score."""
    rows = Run(path).rollouts()["messages"].to_pylist()
    asked = sum(any(m["role"] == "assistant" and m["content"].strip() == "validate" for m in row) for row in rows)
    return f"{asked} of {len(rows):,} rollouts validated."


def main() -> None:
    """Train without a reward, train without a sampler that follows, ask the doctor, fix, train again."""
    from benchmarks.faults.planted.sync import frozen  # story has put the repository on the path

    given = options(__doc__, "never", steps=80)
    recipe = write_recipe(given, RECIPE, evaluations=4, warmup=5, held_out=50 if given.steps >= 10 else 8)

    say("GRPO with a reward that waits for a command.")
    unpaid = attempt(recipe, "unpaid", "tasks.pays=validate")
    say(count_validated(unpaid))
    uptrend("doctor", unpaid)
    say("Fixed: every rollout is scored at its end. But now the sampler never gets the weights.")
    stale = attempt(recipe, "stale", alter=frozen)
    uptrend("doctor", stale)
    say("Fixed too: the sampler loads what the learner sends. Nothing else is changed.")
    well = attempt(recipe, "fixed")
    uptrend("doctor", well)
    uptrend("plot", unpaid, stale, well, "--out", given.out / "autopsy.png", "--title", "No reward, no weights, both")


if __name__ == "__main__":
    main()
