"""Causes: evaluation and operation."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix, Rival, Times

CAUSES = [
    Cause(
        "eval.noise",
        Kind.CURVE,
        what="The claimed gain is inside the evaluation's own interval: too few tasks, or one seed.",
        rivals=(Rival("a small real effect", "more held-out tasks, paired task by task, show it"),),
        experiment=Experiment(
            "Evaluated before and after on four times the held-out tasks, the gain is outside its interval."
        ),
        fix=Fix(
            "Evaluate before and after on the same tasks, paired: 194 tasks for 10 points, 783 for 5, and "
            "several seeds for a claim about a setting.",
            {
                "uptrend": {"eval.tasks": 800},
                "trl": {"eval_dataset": "800 tasks, the same for every run", "num_generations_eval": 1},
            },
        ),
    ),
    Cause(
        "eval.unlike-training",
        Kind.PROBE,
        what="Training and evaluation do not ask or score alike, so progress in one can't be seen in the other.",
        rivals=(
            Rival("sampling", "greedy against sampled answers explains the difference"),
            Rival("reward.gold-rejected", "the training scorer rejects right answers"),
        ),
        experiment=Experiment("The same rollouts get the same scores by both paths.", probe="evaluation"),
        fix=Fix(
            "Use one prompt, one template and one scoring function for both; evaluate the base model by both "
            "before training.",
            {
                "trl": {"eval_dataset": "same prompts and reward_funcs"},
                "prime-rl": {"orchestrator.eval.source.env.taskset.id": "the training taskset's id"},
            },
        ),
        explains=("reward.hackable", "data.memorized"),
    ),
    Cause(
        "run.collapsed",
        Kind.CURVE,
        what="The reward fell from its best and stayed down; what went first (KL, entropy, length, gradient) names "
        "the cause.",
        rivals=(
            Rival("harder tasks", "the mix changed at that step; held-out accuracy did not fall"),
            Rival("optimizer.lr-large", "gradient or KL spiked just before"),
            Rival("run.resume-jump", "the fall is at a resume"),
        ),
        experiment=Experiment(
            "From the checkpoint before the fall, at a third of the learning rate, the reward holds.",
            arms={"control": {}, "a third": {"learning.lr": Times(1 / 3)}, "near": {"learning.kl.beta": 0.04}},
            metric="reward/mean",
        ),
        fix=Fix(
            "Go back to the checkpoint before the fall; lower the learning rate, add a KL penalty, and keep "
            "checkpoints often enough to be able to.",
            {
                "uptrend": {
                    "learning.lr": Times(1 / 3),
                    "learning.kl.beta": 0.04,
                    "checkpoints.every": 20,
                    "checkpoints.keep": 5,
                }
            },
        ),
        explains=(
            "reward.constant",
            "advantage.dead-groups-low",
            "optimizer.dead-steps",
            "context.completion-truncated",
        ),
    ),
    Cause(
        "run.restarts-concatenated",
        Kind.CURVE,
        what="One log holds several runs: steps or the schedule start again, and a single curve through it means "
        "nothing.",
        rivals=(Rival("resume", "steps go on from a checkpoint, and a few are repeated"),),
        experiment=Experiment("Split where the steps start again, each part is judged by itself."),
        fix=Fix(
            "Give every start its own folder and name; read the last part only.",
            {
                "uptrend": {"name": "another-name"},
                "trl": {"output_dir": "a new folder"},
                "verifiers": {"output_dir": "a new folder"},
                "prime-rl": {"output_dir": "a new folder"},
            },
        ),
        explains=("run.resume-jump", "run.collapsed", "optimizer.schedule"),
    ),
    Cause(
        "config.group-of-one",
        Kind.INVARIANT,
        what="Each group has one rollout, so there is nothing to compare it with: its advantage is its raw score, "
        "or 0.",
        rivals=(Rival("another estimator", "a learned value or a running mean is the baseline: no fault"),),
        experiment=Experiment(
            "With groups of 8 at the same number of rollouts, the reward rises.",
            arms={"control": {}, "groups of 8": {"sampling.size": 8}},
            metric="reward/mean",
        ),
        fix=Fix(
            "Sample at least 4 rollouts a task, better 8 to 16; take fewer tasks a step to pay for it.",
            {"uptrend": {"sampling.size": 8}},
        ),
        explains=(
            "advantage.dead-groups-low",
            "advantage.dead-groups-high",
            "advantage.metric-blind",
            "sampling.few-generations",
            "optimizer.dead-steps",
            "kl.dead-group-pull",
        ),
        in_scalars=True,
    ),
    Cause(
        "run.resume-jump",
        Kind.CURVE,
        what="The curve jumps where the run was resumed: optimizer, schedule, random state or place in the data was "
        "not restored.",
        rivals=(Rival("optimizer.schedule", "only the learning rate starts again"),),
        experiment=Experiment("Saved and resumed, a run equals one that went straight through."),
        fix=Fix(
            "Save and restore optimizer, schedule, random states and the place in the tasks with the weights.",
            {
                "uptrend": {"checkpoints.every": 20},
                "trl": {"save_only_model": False},
                "verifiers": {"save_only_model": False},
                "prime-rl": {
                    "trainer.ckpt.skip_optimizer": False,
                    "trainer.ckpt.skip_scheduler": False,
                    "trainer.ckpt.skip_dataloader": False,
                },
            },
        ),
        explains=("run.collapsed",),
    ),
    Cause(
        "run.ranks-diverge",
        Kind.INVARIANT,
        what="The processes of one run no longer hold the same weights, so they train different models.",
        rivals=(Rival("sharding", "each process holds its own part by design; gathered, the parts agree"),),
        experiment=Experiment("Digests of the gathered parameters are the same in every process."),
        fix=Fix(
            "Reduce gradients over all processes on every update, begin from one broadcast of the weights, and "
            "compare digests every so often."
        ),
        explains=("precision.mismatch", "sync.partial"),
    ),
    Cause(
        "run.nonfinite",
        Kind.INVARIANT,
        what="A loss, gradient or log-probability became NaN or infinite; what follows it is not training.",
        rivals=(
            Rival("never logged", "the value is empty in every line: it was not computed"),
            Rival("optimizer.lr-large", "gradient and KL grew over the steps before: overflow is the end of it"),
        ),
        experiment=Experiment(
            "With fp32 weights and a third of the learning rate every value is finite.",
            arms={"control": {}, "fp32": {"model.weights": "fp32"}, "slower": {"learning.lr": Times(1 / 3)}},
            metric="optimizer/skipped/count",
            direction="down",
            smallest=1.0,
        ),
        fix=Fix(
            "Go back to the last checkpoint before it, find the first tensor that is not finite, and mask before "
            "exponentials rather than after.",
            {
                "uptrend": {"model.weights": "fp32", "learning.lr": Times(1 / 3)},
                "trl": {"fp16": False, "bf16": True, "logging_nan_inf_filter": False},
                "verifiers": {"bf16": True},
                "prime-rl": {"trainer.model.reduce_dtype": "float32"},
            },
        ),
        explains=("optimizer.skipped-updates", "run.collapsed"),
        in_scalars=True,
    ),
    Cause(
        "run.too-short",
        Kind.CURVE,
        what="The run is too short or too noisy to show the effect that is sought: no trend can be told either way.",
        rivals=(
            Rival("flat", "the interval's upper end is below the smallest effect that matters"),
            Rival("optimizer.lr-small", "the policy has hardly moved: more of the same steps will not do"),
        ),
        experiment=Experiment(
            "With four times the steps the trend is outside its interval.",
            probe="power",
            arms={"control": {}, "longer": {"learning.steps": Times(4)}},
            metric="reward/mean",
        ),
        fix=Fix(
            "Run longer or sample more a step, and decide by paired held-out tasks.",
            {"uptrend": {"learning.steps": Times(4)}},
        ),
    ),
]
