"""Causes: masks and tokens."""

from uptrend.doctor.catalogue.cause import Cause, Kind
from uptrend.records import Experiment, Fix, Rival

CAUSES = [
    Cause(
        "mask.attention-blind",
        Kind.PROBE,
        what="The learner computes log-probabilities without seeing the prompt or a tool's result, because the wrong "
        "mask was given to attention.",
        rivals=(
            Rival("precision.mismatch", "swapping the prompt moves the learner's log-probabilities by nats"),
            Rival("tokens.template", "the learner sees a prompt, though not the sampler's"),
        ),
        experiment=Experiment(
            "Another prompt, and another tool result, moves the learner's log-probabilities.", probe="prompt-swap"
        ),
        fix=Fix(
            "Build the attention mask from padding alone; prompt and tool results are seen and not trained. "
            "Leave verifiers 0.1.2 to 0.1.6.",
            {"verifiers": {"version": "0.1.9 or later, or prime-rl"}},
        ),
        explains=("tokens.padding", "kl.reference", "tokens.template", "precision.mismatch", "run.collapsed"),
    ),
    Cause(
        "mask.tool-trained",
        Kind.INVARIANT,
        what="Tokens that the model did not write, of the prompt or of a tool's result, have a weight in the loss.",
        rivals=(Rival("intended", "an auxiliary loss on tool results was asked for by name"),),
        experiment=Experiment("No token of prompt or tool has a weight in the loss.", probe="masks"),
        fix=Fix(
            "Set the loss weight to 0 wherever the role is not the model's; check it by counting tokens by role.",
            {"verifiers": {"mask_env_responses": True}, "prime-rl": {"orchestrator.algo.type": "grpo"}},
        ),
        in_scalars=True,
    ),
    Cause(
        "mask.model-untrained",
        Kind.INVARIANT,
        what="Tokens that the model sampled have no weight in the loss, and no option says why.",
        rivals=(
            Rival("truncation masking", "the untrained ones are all of rollouts that were cut by length"),
            Rival("failed rollouts", "the untrained ones are all of rollouts that could not be scored"),
            Rival("mask.stop-untrained", "only the last token of each turn is left out"),
        ),
        experiment=Experiment("Every token sampled in a scored rollout has a weight in the loss.", probe="masks"),
        fix=Fix(
            "Weigh every sampled token 1: thinking and tool calls too, in every turn, not only the last.",
            {"uptrend": {"learning.mask_truncated": False}, "trl": {"top_entropy_quantile": 1.0}},
        ),
    ),
    Cause(
        "mask.stop-untrained",
        Kind.INVARIANT,
        what="The stop token that the model sampled is left out of the loss, so it never learns when to stop.",
        rivals=(
            Rival("stop text", "the turn ended by a text that the sampler cut, and no stop token was sampled"),
            Rival("mask.model-untrained", "other sampled tokens are left out too"),
        ),
        experiment=Experiment("Every sampled stop token has a weight in the loss.", probe="masks"),
        fix=Fix(
            "Count the first stop token as part of the completion; only what comes after it is padding. Do not "
            "use a pad token that equals the stop token to build masks."
        ),
        explains=("sampling.no-stop",),
    ),
    Cause(
        "tokens.retokenized",
        Kind.INVARIANT,
        what="The text was decoded and tokenized again before training, so the ids trained are not those sampled.",
        rivals=(Rival("precision.mismatch", "ids are equal and log-probabilities still differ"),),
        experiment=Experiment("The ids in the loss are the ids that were sampled, one by one.", probe="identity"),
        fix=Fix(
            "Keep the sampler's token ids and append tool results as ids; never decode and encode again between "
            "sampling and training.",
            {"prime-rl": {"orchestrator.train.sampling.extra_body": {"return_token_ids": True}}},
        ),
        explains=("precision.mismatch",),
    ),
    Cause(
        "tokens.template",
        Kind.PROBE,
        what="The sampler's prompt and the learner's are not the same tokens: tools are missing, thinking is "
        "stripped, or a start token is there twice.",
        rivals=(
            Rival("weak model", "prompts are equal token by token"),
            Rival("tokens.retokenized", "prompts are equal; the completions' ids are not"),
        ),
        experiment=Experiment("Prompts are the same ids in sampler and learner.", probe="identity"),
        fix=Fix(
            "Render the prompt once, with its tools, and give the same ids to both.",
            {
                "trl": {
                    "tools": "the same list that the sampler was given",
                    "chat_template_kwargs": "the same for sampler and learner",
                },
                "verifiers": {"version": "0.1.9 or later, or prime-rl"},
                "prime-rl": {"orchestrator.renderer.name": "the renderer of this model family"},
            },
        ),
        explains=("precision.mismatch", "eval.unlike-training"),
    ),
    Cause(
        "tokens.padding",
        Kind.INVARIANT,
        what="A rollout's log-probabilities change when it is padded into a batch: positions or masks ignore the "
        "padding.",
        rivals=(
            Rival("bf16 noise", "in fp32 the difference falls below 1e-4"),
            Rival("mask.attention-blind", "log-probabilities ignore the prompt also when computed alone"),
        ),
        experiment=Experiment("Log-probabilities alone and in a padded batch agree.", probe="padding"),
        fix=Fix(
            "Hand over the attention mask and position ids that start at the first real token; do not pad on the "
            "left without them."
        ),
        explains=("precision.mismatch", "optimizer.accumulation"),
    ),
]
