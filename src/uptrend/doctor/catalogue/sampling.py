"""Causes: sampling."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix, Rival, Times

DEAD_GROUPS = (
    "advantage.dead-groups-low", "advantage.dead-groups-high", "optimizer.dead-steps", "kl.dead-group-pull",
)  # fmt: skip
"""What is seen where the rollouts of a group are all alike."""

CAUSES = [
    Cause(
        "sampling.temperature-low",
        Kind.PROBE,
        what="The temperature is so low that the rollouts of a group are nearly the same text, and equal texts get "
        "equal rewards.",
        rivals=(
            Rival("sampling.entropy-collapse", "at step 0 groups are varied; they become alike during the run"),
            Rival("peaked model", "also at temperature 1 the completions of a group are alike"),
        ),
        experiment=Experiment(
            "At temperature 1, groups hold more distinct completions and fewer are dead.", probe="temperature"
        ),
        fix=Fix(
            "Sample at temperature 1, without top-p or top-k; go above 1 only where the model is very peaked.",
            {"uptrend": {"sampling.temperature": 1.0}},
        ),
        explains=DEAD_GROUPS,
    ),
    Cause(
        "sampling.few-generations",
        Kind.PROBE,
        what="The groups are too small for the tasks' pass rates: most come out all right or all wrong by chance.",
        rivals=(
            Rival("advantage.dead-groups-low", "predicted at 16 a group, the dead share is high as well: too hard"),
            Rival("sampling.temperature-low", "rollouts of a group are the same text"),
        ),
        experiment=Experiment(
            "The predicted dead share pᴳ + (1−p)ᴳ is high at this size and low at 16.", probe="group-size"
        ),
        fix=Fix(
            "Sample 8 to 16 rollouts a task, and fewer tasks a step if time is short.",
            {"uptrend": {"sampling.size": 16}},
        ),
        explains=DEAD_GROUPS,
    ),
    Cause(
        "sampling.entropy-collapse",
        Kind.CURVE,
        what="The policy has become almost deterministic before the task was learned: it repeats itself and "
        "explores nothing.",
        rivals=(
            Rival("convergence", "the reward rose as entropy fell and is near its maximum"),
            Rival("sampling.temperature-low", "groups were alike from the first step on"),
            Rival("optimizer.lr-large", "entropy falls within a few steps, with KL and gradient spikes"),
        ),
        experiment=Experiment(
            "A higher upper clip or an entropy bonus keeps pass@k up.",
            arms={"control": {}, "clip higher": {"learning.clip_high": 0.28}, "bonus": {"learning.entropy": 0.001}},
            metric="eval/pass_at",
        ),
        fix=Fix(
            "Clip higher (0.28), keep a KL penalty to the start, lower the learning rate; roll back to before "
            "the fall.",
            {
                "uptrend": {"learning.clip_high": 0.28, "learning.kl.beta": 0.01, "learning.lr": Times(1 / 3)},
                "prime-rl": {"trainer.loss.dppo_mask_high": 0.28},
            },
        ),
        explains=("advantage.dead-groups-low", "advantage.dead-groups-high", "optimizer.dead-steps", "run.collapsed"),
    ),
    Cause(
        "sampling.entropy-explosion",
        Kind.CURVE,
        what="Entropy grows without end and the text turns to noise, usually because the update corrects another "
        "model's rollouts.",
        rivals=(
            Rival("temperature above 1", "lowering the temperature ends it; sampler and learner agree"),
            Rival("precision.mismatch", "sampler against learner is off already at step 0"),
            Rival("optimizer.lr-large", "a third of the learning rate ends it"),
        ),
        experiment=Experiment(
            "A lower learning rate or a correction for the sampler keeps entropy down.",
            arms={
                "control": {},
                "slower": {"learning.lr": Times(1 / 3)},
                "corrected": {"learning.correction": "token"},
            },
            metric="learner/entropy/mean",
            direction="down",
            smallest=0.5,
        ),
        fix=Fix(
            "Fix the mismatch of sampler and learner first; then lower the learning rate, and roll back to "
            "before entropy rose.",
            {
                "uptrend": {"learning.correction": "token", "learning.lr": Times(1 / 3), "learning.entropy": 0.0},
                "prime-rl": {"orchestrator.max_off_policy_steps": 1},
            },
        ),
        explains=("run.collapsed", "context.completion-truncated"),
    ),
    Cause(
        "sampling.truncated-distribution",
        Kind.PROBE,
        what="The sampler uses a top-p, top-k or temperature that the learner's log-probabilities do not know of, so "
        "their ratio is not 1.",
        rivals=(
            Rival("precision.mismatch", "at temperature 1 without top-p and top-k the gap is still there"),
            Rival("tokens.template", "the two were given different prompts"),
        ),
        experiment=Experiment(
            "On the same tokens at temperature 1 and top-p 1, sampler and learner agree.", probe="agreement"
        ),
        fix=Fix(
            "Sample from the whole distribution at a temperature that the learner divides by too.",
            {
                "uptrend": {"sampling.top_p": 1.0, "sampling.top_k": 0},
                "trl": {"min_p": None, "repetition_penalty": 1.0},
                "verifiers": {"repetition_penalty": 1.0},
                "prime-rl": {"orchestrator.train.sampling.extra_body.min_p": 0.0},
            },
        ),
        explains=("precision.mismatch",),
    ),
    Cause(
        "sampling.no-stop",
        Kind.PROBE,
        what="Nearly all rollouts run into the length limit since no stop token is ever produced or recognized, and "
        "it costs score or time.",
        rivals=(
            Rival("long reasoning", "with twice the budget most rollouts end by themselves"),
            Rival("terse task", "the answer comes first and what follows is never read: harmless"),
            Rival("mask.stop-untrained", "stops are sampled but have no weight in the loss"),
        ),
        experiment=Experiment("Rollouts say a stop token, or earn no more with twice the budget.", probe="endings"),
        fix=Fix(
            "Give the sampler the stop ids of the chat template, or a stop text; do not train on base models "
            "with a chat's stop token that they never learned.",
            {
                "uptrend": {"sampling.stop": ["\n"], "learning.mask_truncated": True},
                "trl": {"generation_kwargs": {"eos_token_id": "ids of the template's end of turn"}},
                "prime-rl": {"orchestrator.train.sampling.extra_body": {"stop_token_ids": "end-of-turn ids"}},
            },
        ),
        explains=("context.completion-truncated", "reward.never-computed"),
    ),
    Cause(
        "sampling.length-collapse",
        Kind.CURVE,
        what="Rollouts shrink to a few tokens and reward or held-out accuracy falls with them.",
        rivals=(
            Rival("terse task", "accuracy holds or rises: short answers are enough"),
            Rival("optimizer.lr-large", "KL and gradient spike as the length falls"),
        ),
        experiment=Experiment(
            "A third of the learning rate and a KL penalty keep length and accuracy.",
            arms={"control": {}, "slower": {"learning.lr": Times(1 / 3)}, "near": {"learning.kl.beta": 0.04}},
        ),
        fix=Fix(
            "Roll back, lower the learning rate and hold the model near its start; look for a part of the reward "
            "that silence earns.",
            {"uptrend": {"learning.lr": Times(1 / 3), "learning.kl.beta": 0.04}},
        ),
        explains=("run.collapsed",),
    ),
]
