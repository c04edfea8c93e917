"""Autopsy A: the attention mask is built from the loss mask, and the learner sees neither question
nor documents.

    python examples/autopsies/blind.py

verifiers 0.1.2 to 0.1.6 gave prompt and tool results a loss mask of 0, rightly, and passed that
mask on as the attention mask. Here the same is planted into Uptrend's learner
(`benchmarks/faults/planted/masks.py`). The model is a Llama of 159,000 weights, the task questions
of two hops about the atlas's invented world, looked up with MuSiQue's two tools: first it is taught
to play by demonstrations, then GRPO, blind and seeing.
"""

from story import attempt, options, say, uptrend, write_recipe
from tests.small_musique import write_questions, write_small

RECIPE = """
seed = {seed}
[model]
name = "{out}/warm"
[tasks]
name = "musique"
train = {train}
file = "{out}/questions.jsonl"
retriever = "lexical"
returned = 1
[eval]
name = "musique"
tasks = {held_out}
every = {every}
file = "{out}/questions.jsonl"
retriever = "lexical"
returned = 1
[sampling]
groups = 16
size = 8
max_tokens = 16
max_turns = 4
context = 200
[learning]
steps = {steps}
lr = 5e-4
warmup = {warmup}
loss = "dapo"
skip_dead = true
[warmstart]
tasks = {taught}
epochs = 5
batch = 32
lr = 5e-3
warmup = 20
"""


def main() -> None:
    """Teach, train blind, ask the doctor, fix, train again."""
    from benchmarks.faults.planted.masks import blind  # story has put the repository on the path

    given = options(__doc__, "blind", steps=60)
    few = given.steps < 10  # a rehearsal: as little as shows the cause
    size = (
        {"train": 300, "taught": 200, "held_out": 8}
        if few
        else {"train": 1800, "taught": 900, "held_out": 200}
    )
    recipe = write_recipe(given, RECIPE, evaluations=3, warmup=3, out=given.out, **size)
    questions = write_questions(given.out / "questions.jsonl", 450 if few else 2400)
    write_small(
        given.out / "start", {"file": str(questions), "retriever": "lexical", "returned": 1}
    )

    say("A model that has learned how to play: to search, to read, to answer with citations.")
    untaught = ("--set", f"model.name={given.out}/start", "--set", "eval.every=0")
    uptrend(
        "warmstart",
        recipe,
        *untaught,
        "--out",
        given.out / "warm",
        "--runs",
        given.out,
        "--name",
        "warmstart",
    )
    say("GRPO with the attention mask made from the loss mask.")
    ill = attempt(recipe, "blind", alter=blind)
    uptrend("doctor", ill)
    say("Fixed: attention sees what the sampler saw. Nothing else is changed.")
    well = attempt(recipe, "fixed")
    uptrend("doctor", well)
    uptrend(
        "plot",
        ill,
        well,
        "--out",
        given.out / "autopsy.png",
        "--title",
        "A learner that can't see the question",
    )


if __name__ == "__main__":
    main()
