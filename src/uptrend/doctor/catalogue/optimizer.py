"""Causes: optimizer."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix, Rival, Times

CAUSES = [
    Cause(
        "optimizer.lr-small",
        Kind.PROBE,
        what="The learning rate is too small for the number of steps: weights move, but what the model says does not.",
        rivals=(
            Rival("precision.update-underflow", "most weights' bits do not change at all in a step"),
            Rival("sync.stale-weights", "the learner's outputs move, the sampler's do not"),
            Rival("advantage.dead-groups-low", "there is nothing to learn from at any learning rate"),
            Rival("kl.strangles", "at beta 0 the same learning rate moves the model"),
        ),
        experiment=Experiment(
            "At 10 or 100 times the learning rate the reward rises within 30 steps.",
            probe="step-size",
            arms={"control": {}, "10 times": {"learning.lr": Times(10)}, "100 times": {"learning.lr": Times(100)}},
            metric="reward/mean",
            steps=30,
        ),
        fix=Fix(
            "Raise the learning rate by ten; adapters want about ten times what full training wants.",
            {"uptrend": {"learning.lr": Times(10)}},
        ),
    ),
    Cause(
        "optimizer.lr-large",
        Kind.CURVE,
        what="The learning rate is so large that single steps break the model: clipping, gradient spikes, then a "
        "collapse after progress.",
        rivals=(
            Rival("sync.off-policy", "the ratio is far from 1 before the update already: the data is stale"),
            Rival("advantage.blow-up", "single advantages are huge"),
            Rival("kl.runaway", "slow and steady, without spikes"),
        ),
        experiment=Experiment(
            "At a third of the learning rate the run does not collapse.",
            arms={"control": {}, "a third": {"learning.lr": Times(1 / 3)}},
        ),
        fix=Fix(
            "Go back to the checkpoint before the spike and go on at a third of the learning rate, with a warm-up.",
            {
                "uptrend": {"learning.lr": Times(1 / 3), "learning.warmup": 10},
                "trl": {"max_grad_norm": 1.0},
                "prime-rl": {"trainer.optim.max_norm": 1.0},
            },
        ),
        explains=(
            "sampling.entropy-collapse",
            "sampling.entropy-explosion",
            "sampling.length-collapse",
            "kl.runaway",
            "run.collapsed",
        ),
    ),
    Cause(
        "optimizer.clip-tight",
        Kind.PROBE,
        what="The gradient is clipped on every step and the update shrinks with it, as under plain SGD.",
        rivals=(Rival("Adam's invariance", "under Adam a constant rescale cancels: ‖Δθ‖ is the same at 0.01 and 1"),),
        experiment=Experiment(
            "At a clip of 1.0 the weights move further than at the present one.",
            arms={"control": {}, "clip 1": {"learning.max_grad_norm": 1.0}},
            metric="weights/update/norm",
            smallest=0.5,
            steps=5,
        ),
        fix=Fix(
            "Clip at 1.0, or use Adam, for which a constant clip does not matter.",
            {"uptrend": {"learning.max_grad_norm": 1.0}, "prime-rl": {"trainer.optim.type": "adamw"}},
        ),
        explains=("optimizer.lr-small", "optimizer.frozen"),
    ),
    Cause(
        "optimizer.schedule",
        Kind.CURVE,
        what="Warm-up or decay eats the run: summed over its steps, the learning rate is a small part of what the "
        "config promises.",
        rivals=(
            Rival("run.too-short", "with a constant learning rate the run is still too short to tell"),
            Rival("run.restarts-concatenated", "the schedule starts again because a new run does"),
        ),
        experiment=Experiment(
            "With a constant learning rate the reward rises further in the same steps.",
            probe="schedule",
            arms={"control": {}, "constant": {"learning.schedule": "constant", "learning.warmup": 0}},
            metric="reward/mean",
        ),
        fix=Fix(
            "Use a constant learning rate with a warm-up of at most a tenth of the steps, and tell the schedule "
            "how many steps there really are.",
            {"uptrend": {"learning.schedule": "constant", "learning.warmup": 0}},
        ),
        explains=("optimizer.lr-small",),
    ),
    Cause(
        "optimizer.skipped-updates",
        Kind.INVARIANT,
        what="Steps are counted while their updates were skipped, for an infinite gradient, a loss scaler or an "
        "empty batch.",
        rivals=(
            Rival("optimizer.dead-steps", "updates are applied, with a gradient of exactly 0"),
            Rival("fp16 scaler warming up", "a handful of skips in the first steps and none later: no fault"),
        ),
        experiment=Experiment(
            "In bf16 or fp32 arithmetic no update is skipped.",
            arms={"control": {}, "fp32": {"model.weights": "fp32"}},
            metric="optimizer/skipped/count",
            direction="down",
            smallest=1.0,
            steps=10,
        ),
        fix=Fix(
            "Find the first tensor that is not finite; use bf16 or fp32 in place of fp16, and log updates "
            "applied beside steps.",
            {
                "uptrend": {"model.weights": "fp32"},
                "trl": {"fp16": False, "bf16": True, "logging_nan_inf_filter": False},
                "verifiers": {"bf16": True},
                "prime-rl": {"trainer.model.reduce_dtype": "float32"},
            },
        ),
        explains=("optimizer.frozen", "optimizer.lr-small", "kl.strangles"),
        in_scalars=True,
    ),
    Cause(
        "optimizer.frozen",
        Kind.INVARIANT,
        what="No trainable weight changes: they are not in the optimizer, need no gradient, or their gradient never "
        "arrives.",
        rivals=(
            Rival("precision.update-underflow", "in fp32 the same update changes nearly all weights"),
            Rival("optimizer.dead-steps", "the gradient is 0 on that batch, not the path to the weights"),
        ),
        experiment=Experiment("One update changes the weights that should train.", probe="movement"),
        fix=Fix(
            "List the parameters that require gradients and compare them with the optimizer's; make the optimizer "
            "after the adapters, and check that lora_B leaves 0.",
            {
                "trl": {
                    "peft_config": 'LoraConfig(target_modules="all-linear")',
                    "gradient_checkpointing_kwargs": {"use_reentrant": False},
                },
                "verifiers": {"lora_target_modules": None},
                "prime-rl": {"trainer.model.lora.target_modules": "modules that the model has"},
            },
        ),
        explains=("sync.stale-weights", "precision.update-underflow", "optimizer.lr-small", "kl.strangles"),
        in_scalars=True,
    ),
    Cause(
        "optimizer.accumulation",
        Kind.INVARIANT,
        what="The same batch gives another gradient when it is split into micro-batches: they are weighted wrongly.",
        rivals=(
            Rival("token-mean loss", "by design a mean over each micro-batch's tokens (bnpo) depends on the split"),
            Rival("tokens.padding", "log-probabilities themselves change with the split"),
        ),
        experiment=Experiment("Gradients of 1 × 64 and 8 × 8 rollouts agree to 1e-3.", probe="accumulation"),
        fix=Fix(
            "Divide by the counts of the whole step, not of the micro-batch; use a loss that is defined over the step.",
            {"trl": {"loss_type": "dapo"}},
        ),
    ),
    Cause(
        "optimizer.dead-steps",
        Kind.CURVE,
        what="On many steps the gradient is exactly 0: the step cost its sampling and taught nothing.",
        rivals=(
            Rival("loss ≈ 0", "a loss of about 0 with a gradient above 0 is normal with centered advantages"),
            Rival("advantage.dead-groups-low", "the step's groups are all dead: that is the cause"),
        ),
        experiment=Experiment(
            "Drawing again in place of dead groups leaves no step without a gradient.",
            arms={"control": {}, "again": {"sampling.resample": 2}},
            metric="gradient/norm/before",
            smallest=0.0,
            steps=20,
        ),
        fix=Fix(
            "Look at the groups of such a step; put more tasks into a step, and draw again in place of dead groups.",
            {
                "uptrend": {"sampling.resample": 2, "sampling.groups": Times(2)},
                "trl": {"gradient_accumulation_steps": Times(2)},
            },
        ),
    ),
]
