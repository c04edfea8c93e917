"""Causes: advantage."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix, Rival

CAUSES = [
    Cause(
        "advantage.dead-groups-low",
        Kind.CURVE,
        what="Most groups have every rollout at the bottom of the reward: they have no gradient, and the rest is "
        "too little to learn from.",
        rivals=(
            Rival("reward.gold-rejected", "a gold answer of a dead group's task scores below the maximum"),
            Rival("reward.strict-parser", "a lenient reader finds right answers among the dead groups"),
            Rival("sampling.few-generations", "pass@64 is well above 0: a larger group would not be dead"),
        ),
        experiment=Experiment(
            "At most half of the groups are dead at this pass rate and group size.", probe="dead-groups"
        ),
        fix=Fix(
            "Rule out the scorer with gold answers; then take easier tasks, warm-start on demonstrations, or draw "
            "again in place of dead groups.",
            {
                "uptrend": {"sampling.size": 16, "sampling.resample": 2},
                "prime-rl": {"orchestrator.train.source.curriculum.sampler.type": "difficulty_pool"},
            },
        ),
        explains=("optimizer.dead-steps", "kl.dead-group-pull", "optimizer.lr-small", "kl.strangles"),
    ),
    Cause(
        "advantage.dead-groups-high",
        Kind.CURVE,
        what="Most groups have every rollout at the top of the reward: the tasks are too easy or the check is too "
        "lax, and nothing is left to learn from.",
        rivals=(
            Rival("learned", "the share grew with the reward over the run: no fault, the run is done"),
            Rival("task.evaluator-exposed", "a scripted cheater reaches the maximum too"),
            Rival("reward.gold-rejected", "corrupted answers score the maximum: the check is too lax"),
        ),
        experiment=Experiment(
            "At most half of the groups are dead at this pass rate and group size.", probe="dead-groups"
        ),
        fix=Fix(
            "Show that corrupted answers lose, then take harder tasks: those that 20% to 80% of attempts solve.",
            {
                "uptrend": {"sampling.resample": 2},
                "prime-rl": {"orchestrator.train.source.curriculum.sampler.type": "difficulty_pool"},
            },
        ),
        explains=("optimizer.dead-steps", "kl.dead-group-pull", "optimizer.lr-small", "kl.strangles"),
    ),
    Cause(
        "advantage.metric-blind",
        Kind.INVARIANT,
        what="The trainer's own count of dead groups is not the true one, so the log hides that most groups teach "
        "nothing.",
        rivals=(Rival("advantage.wrong-groups", "the groups themselves are wrong, not only the metric"),),
        experiment=Experiment("The dead share recomputed from rewards by true group id equals the logged one."),
        fix=Fix(
            "Count dead groups by task id, from the rewards; with TRL, scale by group while you look.",
            {"trl": {"scale_rewards": "group", "multi_objective_aggregation": "sum_then_normalize"}},
        ),
    ),
    Cause(
        "advantage.wrong-groups",
        Kind.INVARIANT,
        what="Rollouts of different tasks were compared with each other as one group, so their baseline is another "
        "task's.",
        rivals=(Rival("reward.misaligned", "there the reward is of another task; here only the baseline is"),),
        experiment=Experiment(
            "In one recorded batch, every group holds one task and its advantages add up to 0.", probe="advantages"
        ),
        fix=Fix(
            "Group by task id and never by position; keep a group's rollouts together through every shuffle, filter "
            "and gather.",
            {"trl": {"num_generations": "must divide the generation batch, all of whose rollouts must return"}},
        ),
        explains=("advantage.sign", "advantage.metric-blind", "advantage.blow-up"),
    ),
    Cause(
        "advantage.blow-up",
        Kind.INVARIANT,
        what="A group's deviation is almost 0 and the advantage divided by it is huge: one rollout rules the step.",
        rivals=(
            Rival("rare success in a large group", "the size stays at or below √(group size − 1)"),
            Rival("optimizer.lr-large", "gradients spike although all advantages are small"),
        ),
        experiment=Experiment(
            "Without dividing by the deviation, gradient spikes go away.",
            probe="advantages",
            arms={"control": {}, "unscaled": {"learning.scale": "none"}},
            metric="gradient/norm/before",
            direction="down",
            smallest=0.5,
            steps=20,
        ),
        fix=Fix(
            "Do not divide by the group's deviation, or leave groups out whose deviation is rounding error; compute "
            "it in fp64 or on integers where rewards are nearly equal.",
            {"uptrend": {"learning.scale": "none"}},
        ),
        explains=("optimizer.lr-large", "run.collapsed"),
    ),
    Cause(
        "advantage.sign",
        Kind.INVARIANT,
        what="The update lowers the probability of good rollouts and raises that of bad ones: a sign is wrong "
        "between reward and loss.",
        rivals=(
            Rival("optimizer.lr-small", "at 100 times the learning rate log-probabilities follow the sign"),
            Rival("mask.attention-blind", "they move, but without regard to the prompt"),
        ),
        experiment=Experiment(
            "After one step on one batch, log-probabilities follow the sign of the advantage.", probe="sign"
        ),
        fix=Fix(
            "Look for a loss maximized where it should be minimized, a cost used as a reward, or a baseline "
            "subtracted the wrong way round."
        ),
        explains=("run.collapsed", "kl.runaway"),
    ),
    Cause(
        "advantage.length-bias",
        Kind.CURVE,
        what="Dividing each rollout's loss by its length fines long wrong rollouts less, so wrong ones grow longer.",
        rivals=(
            Rival("context.completion-truncated", "long ones are wrong because they were cut"),
            Rival("reward.length-hacking", "right and wrong ones grow alike, since length is paid"),
        ),
        experiment=Experiment(
            "A loss summed over a constant length keeps wrong rollouts short.",
            arms={"control": {}, "dr_grpo": {"learning.loss": "dr_grpo"}},
            metric="sampling/length/mean",
            direction="down",
            smallest=0.1,
        ),
        fix=Fix(
            "Use a loss that divides by a constant or by all tokens of the step, not by each rollout's length.",
            {"uptrend": {"learning.loss": "dr_grpo"}},
        ),
        explains=("context.completion-truncated",),
    ),
]
