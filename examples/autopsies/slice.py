"""Autopsy B: a reward that cuts `completion[len(prompt):]`, and so grades what comes after the
answer.

    python examples/autopsies/slice.py

TRL hands a reward function the completion alone. Scripts that cut the prompt's length off it graded
the text about twenty characters behind the answer: "23" earned -1. The evaluation cut rightly, as
it does here: training reads `cut:Cut`, held-out tasks are plain arithmetic. The model is `tiny`, a
million weights that know some arithmetic. The same in TRL itself: `python examples/watch_trl.py
--fault cut`.
"""

from story import attempt, options, say, uptrend, write_recipe

RECIPE = """
seed = {seed}
[model]
name = "tiny"
[tasks]
name = "arithmetic"
operations = ["+", "-"]
train = 700
reward = "partial"           # 1 for the number, less for a near miss, -1 for anything else
[eval]
name = "arithmetic"
operations = ["+", "-"]
tasks = {held_out}
every = {every}
[sampling]
groups = 32
size = 16
temperature = 0.5
max_tokens = 32              # a prompt has 18 to 20 characters: there is room for an answer behind them
[learning]
steps = {steps}
lr = 2.5e-4
schedule = "linear"
warmup = {warmup}
beta2 = 0.99
loss = "grpo"
"""


def main() -> None:
    """Train on the wrong slice, ask the doctor, fix, train again."""
    given = options(__doc__, "slice", steps=150)
    recipe = write_recipe(
        given, RECIPE, evaluations=3, warmup=10, held_out=220 if given.steps >= 10 else 8
    )

    say("GRPO with the reward that cuts the prompt's length off the completion.")
    ill = attempt(recipe, "sliced", "tasks.name=examples.autopsies.cut:Cut")
    uptrend("doctor", ill)
    say("Fixed: the completion is graded as it is. Nothing else is changed.")
    well = attempt(recipe, "fixed")
    uptrend("doctor", well)
    uptrend(
        "plot",
        ill,
        well,
        "--out",
        given.out / "autopsy.png",
        "--title",
        "A reward that grades what follows",
    )


if __name__ == "__main__":
    main()
