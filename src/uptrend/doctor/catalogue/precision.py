"""Causes: precision, policy and synchronization."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix, Rival

CAUSES = [
    Cause(
        "precision.update-underflow",
        Kind.INVARIANT,
        what="Updates are smaller than the spacing of bf16 numbers, so most weights round back to what they were.",
        rivals=(
            Rival("optimizer.frozen", "in fp32 too, no bit changes"),
            Rival("optimizer.lr-small", "in fp32 all bits change and the outputs still do not"),
        ),
        experiment=Experiment(
            "With fp32 weights nearly all weights change in a step.",
            probe="movement",
            arms={"control": {}, "fp32": {"model.weights": "fp32"}},
            metric="weights/changed/share",
            smallest=0.5,
            steps=5,
        ),
        fix=Fix(
            "Keep the weights that train in fp32 and use bf16 for arithmetic alone.",
            {
                "uptrend": {"model.weights": "fp32"},
                "trl": {"bf16": True, "use_transformers_continuous_batching": False},
            },
        ),
        explains=("sync.stale-weights", "optimizer.lr-small", "kl.strangles"),
        in_scalars=True,
    ),
    Cause(
        "precision.mismatch",
        Kind.PROBE,
        what="Sampler and learner give the same tokens different probabilities, so the update corrects another "
        "model's rollouts.",
        rivals=(
            Rival("sync.stale-weights", "at step 0 they agree, and the gap grows with every step"),
            Rival("tokens.template", "the two were given other tokens"),
            Rival("policy.dropout-on", "with the learner in evaluation mode the gap is gone"),
            Rival("mask.attention-blind", "the learner does not react to another prompt"),
        ),
        experiment=Experiment("At step 0, on the same ids, sampler and learner agree to rounding.", probe="agreement"),
        fix=Fix(
            "Run both in the same precision and kernels, the head in fp32; where a gap remains, weight tokens by "
            "learner over sampler, with a cap.",
            {
                "uptrend": {"learning.correction": "token", "learning.correction_cap": 2.0},
                "trl": {"cast_lm_head_to_fp32": True},
                "verifiers": {"mask_ratio_low": 0.125, "mask_ratio_high": 8.0},
                "prime-rl": {"inference.enable_fp32_lm_head": True, "inference.vllm.dtype": "bfloat16"},
            },
        ),
        explains=("sampling.entropy-explosion",),
        in_scalars=True,
    ),
    Cause(
        "policy.dropout-on",
        Kind.INVARIANT,
        what="Dropout is active while the learner computes log-probabilities, so the same weights give a ratio other "
        "than 1.",
        rivals=(
            Rival("precision.mismatch", "in evaluation mode the gap is still there"),
            Rival("several updates a step", "the ratio is of a later pass, after weights moved"),
        ),
        experiment=Experiment(
            "Without dropout the same weights give the same probabilities.",
            probe="dropout",
            arms={"control": {}, "no dropout": {"model.lora.dropout": 0.0}},
            metric="sampler/kl/mean",
            direction="down",
            smallest=0.001,
            steps=5,
        ),
        fix=Fix(
            "Train without dropout: set it to 0 in the model and in the adapters.",
            {"uptrend": {"model.lora.dropout": 0.0}, "trl": {"disable_dropout": True}},
        ),
        explains=(
            "optimizer.accumulation",
            "tokens.padding",
            "sync.stale-weights",
            "precision.mismatch",
            "kl.reference",
        ),
    ),
    Cause(
        "sync.stale-weights",
        Kind.PROBE,
        what="The sampler keeps old weights: the learner moves and the rollouts never show it.",
        rivals=(
            Rival("precision.mismatch", "the gap is there at step 0 and does not grow"),
            Rival("optimizer.lr-small", "the learner's own outputs hardly move either"),
        ),
        experiment=Experiment(
            "After the learner is perturbed and synchronized, the sampler's log-probabilities follow.",
            probe="synchronize",
        ),
        fix=Fix(
            "Send the weights after every update and prove it: compare a digest, or log-probabilities, on both "
            "sides; an adapter must be merged or loaded by the server under the name that it serves.",
            {
                "trl": {"vllm_mode": "colocate"},
                "prime-rl": {"weight_broadcast.type": "nccl", "orchestrator.max_off_policy_steps": 1},
            },
        ),
        explains=("precision.mismatch", "sync.off-policy", "sampling.entropy-explosion", "kl.runaway"),
    ),
    Cause(
        "sync.partial",
        Kind.PROBE,
        what="Some tensors reach the sampler and some do not, or an adapter's scale is lost when it is merged.",
        rivals=(
            Rival("bf16 rounding", "every tensor differs a little, none by more than its rounding"),
            Rival("sync.stale-weights", "no tensor has changed at all"),
        ),
        experiment=Experiment(
            "After synchronizing, every tensor of the sampler equals the learner's.", probe="synchronize"
        ),
        fix=Fix(
            "Compare names and digests tensor by tensor after a send; mind tied embeddings, fused projections and "
            "alpha / r.",
            {"prime-rl": {"weight_broadcast.type": "filesystem"}},
        ),
        # Records alone can't tell some old weights from all: a probe that has named the tensors knows more.
        explains=("sync.stale-weights", "precision.mismatch", "sampling.entropy-explosion"),
    ),
    Cause(
        "sync.off-policy",
        Kind.CURVE,
        what="Rollouts are trained on many updates after the policy that sampled them, and the ratio is far from 1.",
        rivals=(
            Rival("sync.stale-weights", "the lag in versions is small, but the weights behind the number are old"),
            Rival("optimizer.lr-large", "one update alone moves the ratio that far"),
        ),
        experiment=Experiment(
            "With one update a step, on fresh rollouts, held-out accuracy ends higher.",
            arms={"control": {}, "fresh": {"learning.updates": 1, "learning.minibatches": 1}},
        ),
        fix=Fix(
            "Let fewer updates pass between sampling and training, drop what is older, and correct by the ratio.",
            {
                "uptrend": {"learning.updates": 1, "learning.minibatches": 1, "learning.correction": "token"},
                "trl": {
                    "steps_per_generation": "the same as gradient_accumulation_steps",
                    "off_policy_mask_threshold": 0.5,
                },
                "verifiers": {"num_batches_ahead": 0},
                "prime-rl": {"orchestrator.max_off_policy_steps": 1},
            },
        ),
        explains=("precision.mismatch",),
    ),
    Cause(
        "sync.prefix-cache",
        Kind.PROBE,
        what="The server answers from keys and values cached under the old weights after new ones were loaded.",
        rivals=(Rival("sync.stale-weights", "also after a cache reset the sampler gives the old answers"),),
        experiment=Experiment(
            "Log-probabilities after synchronizing are the same with and without a cache reset.", probe="synchronize"
        ),
        fix=Fix(
            "Reset the prefix cache after every weight update, or switch it off.",
            {
                "prime-rl": {"inference.vllm.enable_prefix_caching": False},
                "verl": {"actor_rollout_ref.rollout.enable_prefix_caching": False},
            },
        ),
        explains=("sync.stale-weights", "precision.mismatch"),
    ),
]
