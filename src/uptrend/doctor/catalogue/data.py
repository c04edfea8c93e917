"""Causes: data and context."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix, Rival, Times

CAUSES = [
    Cause(
        "data.duplicates",
        Kind.INVARIANT,
        what="The training set repeats its tasks, so it is smaller than it looks and is learned by heart.",
        rivals=(Rival("curriculum", "the repeats are asked for by name, and held-out accuracy rises"),),
        experiment=Experiment("At least 90% of the training tasks are different.", probe="repeats"),
        fix=Fix(
            "Remove repeats before counting, and generate more tasks.",
            {"uptrend": {"tasks.train": Times(4)}, "trl": {"train_dataset": "without repeated prompts"}},
        ),
        explains=("data.memorized",),
    ),
    Cause(
        "data.batch-exceeds",
        Kind.INVARIANT,
        what="A step draws more tasks than the training set has, so every step repeats the whole set.",
        rivals=(Rival("data.duplicates", "the set is large and repeats itself"),),
        experiment=Experiment("A step draws no more tasks than there are.", probe="repeats"),
        fix=Fix(
            "Take more tasks, or fewer a step and more rollouts a task.",
            {
                "uptrend": {"sampling.groups": 8, "tasks.train": 500},
                "trl": {"generation_batch_size": "at most num_generations × tasks / 4"},
            },
        ),
        explains=("data.duplicates", "data.memorized"),
        in_scalars=True,
    ),
    Cause(
        "data.leak",
        Kind.INVARIANT,
        what="Held-out tasks are among those trained on, so the evaluation measures memory.",
        rivals=(Rival("similar tasks", "they look alike, but no prompt is in both sets"),),
        experiment=Experiment("No held-out task's content hash is among the training tasks.", probe="leak"),
        fix=Fix(
            "Split by a hash of the task's content, not by a seed or a row number, and evaluate again from the start.",
            {"trl": {"eval_dataset": "split by content hash"}},
        ),
    ),
    Cause(
        "data.wrong-gold",
        Kind.PROBE,
        what="The stored answers of many tasks are wrong: a model that answers rightly is told that it is not.",
        rivals=(
            Rival("hard items", "attempts disagree with each other, and not with one voice against the gold answer"),
            Rival("reward.strict-parser", "the stored answer is right and is written otherwise"),
        ),
        experiment=Experiment(
            "On easy tasks the answer that attempts agree on is the gold answer.", probe="wrong-gold"
        ),
        fix=Fix("Audit 50 tasks where a clear majority of attempts disagrees with the gold answer; fix or drop them."),
        explains=("advantage.dead-groups-low",),
    ),
    Cause(
        "data.memorized",
        Kind.CURVE,
        what="Training tasks are solved by heart: their reward is high while held-out accuracy is flat or falls.",
        rivals=(
            Rival("eval.unlike-training", "the same rollouts get other scores by the other path"),
            Rival("reward.hackable", "a second verifier finds the training answers wrong too"),
        ),
        experiment=Experiment(
            "With four times the tasks in the same steps, held-out accuracy ends higher.",
            arms={"control": {}, "more tasks": {"tasks.train": Times(4)}},
        ),
        fix=Fix(
            "Train on more tasks for fewer epochs, and stop at the best held-out accuracy.",
            {
                "uptrend": {"tasks.train": Times(4), "eval.every": 20, "checkpoints.every": 20},
                "trl": {"num_train_epochs": 1},
            },
        ),
    ),
    Cause(
        "data.order",
        Kind.INVARIANT,
        what="Tasks come sorted by difficulty or kind, so the reward curve shows the order and not the learning.",
        rivals=(
            Rival("curriculum", "stages are asked for by name"),
            Rival("reward.scale-moves", "the reward's bounds change, not the order"),
        ),
        experiment=Experiment("A task's difficulty does not go with its place in the training order.", probe="order"),
        fix=Fix(
            "Shuffle before the first epoch, under a seed of its own.",
            {
                "uptrend": {"tasks.seed": 1, "tasks.stages": []},
                "trl": {"shuffle_dataset": True},
                "verifiers": {"shuffle_dataset": True},
                "prime-rl": {"orchestrator.train.source.curriculum.sampler.type": "difficulty_pool"},
                "verl": {"data.shuffle": True},
            },
        ),
        explains=("reward.scale-moves", "run.collapsed"),
    ),
    Cause(
        "context.prompt-truncated",
        Kind.INVARIANT,
        what="Prompts are cut at a limit, and what is needed for the answer is cut off with them.",
        rivals=(Rival("poor retrieval", "the support was never among what was given"),),
        experiment=Experiment(
            "With twice the window the reward is higher.",
            probe="prompts",
            arms={"control": {}, "twice": {"sampling.context": Times(2)}},
            metric="reward/mean",
            steps=5,
        ),
        fix=Fix(
            "Raise the limit, or drop tasks that do not fit; never cut a prompt silently.",
            {
                "uptrend": {"sampling.context": Times(2), "sampling.max_prompt": 0},
                "verifiers": {"max_prompt_len": Times(2)},
                "verl": {"data.max_prompt_length": Times(2)},
            },
        ),
        explains=("advantage.dead-groups-low", "reward.constant", "reward.error-scored", "reward.never-computed"),
    ),
    Cause(
        "context.completion-truncated",
        Kind.CURVE,
        what="Many rollouts are cut by the length limit and are paid less for it: what is fined is length, not error.",
        rivals=(
            Rival("sampling.no-stop", "with twice the budget they are still all cut"),
            Rival("terse task", "cut rollouts score as well as the rest: harmless"),
            Rival("advantage.length-bias", "wrong rollouts grow until they are cut"),
        ),
        experiment=Experiment(
            "With twice the budget, rollouts end by themselves and score higher.",
            probe="endings",
            arms={"control": {}, "twice": {"sampling.max_tokens": Times(2)}},
            metric="reward/mean",
            steps=20,
        ),
        fix=Fix(
            "Double the budget, or leave cut rollouts out of the loss.",
            {
                "uptrend": {"sampling.max_tokens": Times(2), "learning.mask_truncated": True},
                "prime-rl": {"seq_len": Times(2)},
            },
        ),
        explains=("reward.never-computed", "advantage.dead-groups-low"),
    ),
]
