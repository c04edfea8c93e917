"""Probes: questions to the real model, tasks and learner before anything is trained, a file each.

In the order in which they are asked: what a probe shows, those after it may take for granted.
"""

from collections.abc import Callable
from dataclasses import dataclass

from uptrend.doctor.probes import (
    accumulation,
    advantages,
    agreement,
    cheater,
    control,
    dead_groups,
    dropout,
    endings,
    evaluation,
    gold,
    group_size,
    identity,
    kl_sign,
    leak,
    masks,
    movement,
    order,
    padding,
    paid,
    parser,
    power,
    prompt_swap,
    prompts,
    reference,
    repeats,
    rescoring,
    rl_control,
    schedule,
    sign,
    state,
    step_size,
    synchronize,
    temperature,
    tool_calls,
    tool_swap,
    wrong_gold,
)
from uptrend.doctor.probes.bench import Bench
from uptrend.doctor.probes.result import Result


@dataclass(frozen=True)
class Probe:
    """One question."""

    ask: Callable[[Bench], Result]
    """Asks it."""
    asks: str
    """What it asks, in a line."""
    cheap: bool = True
    """Whether `uptrend train` asks it by itself."""
    full: bool = False
    """Whether it is only asked with --full."""


PROBES: dict[str, Probe] = {
    "gold": Probe(gold.probe, "do gold answers earn the most, and corrupted ones less?"),
    "repeats": Probe(repeats.probe, "are training tasks different from each other?"),
    "leak": Probe(leak.probe, "are held-out tasks trained on?"),
    "order": Probe(order.probe, "do tasks come sorted?"),
    "schedule": Probe(schedule.probe, "does the learning rate's schedule leave enough?"),
    "prompts": Probe(prompts.probe, "do prompts and rollouts fit into the context?"),
    "rescoring": Probe(rescoring.probe, "do rollouts earn the same when scored again?"),
    "state": Probe(state.probe, "do rollouts side by side leave each other alone?"),
    "cheater": Probe(cheater.probe, "can the evaluator be reached from inside?"),
    "paid": Probe(paid.probe, "does what earns a reward ever happen?"),
    "tool-calls": Probe(tool_calls.probe, "can several tool calls and results be rendered?"),
    "identity": Probe(identity.probe, "is what is learned what was sampled?"),
    "prompt-swap": Probe(prompt_swap.probe, "does the learner see the prompt?"),
    "tool-swap": Probe(tool_swap.probe, "does the learner see tool results?"),
    "padding": Probe(padding.probe, "are log-probabilities the same alone and in a batch?"),
    "agreement": Probe(agreement.probe, "do learner and sampler agree on the same tokens?"),
    "reference": Probe(reference.probe, "is KL 0 at step 0?"),
    "synchronize": Probe(synchronize.probe, "does the sampler follow the learner?"),
    "masks": Probe(masks.probe, "is what the model said trained, and nothing else?"),
    "advantages": Probe(advantages.probe, "are advantages those of true groups?"),
    "sign": Probe(sign.probe, "do log-probabilities follow the advantage?"),
    "movement": Probe(movement.probe, "which share of the weights' bits does an update change?"),
    "step-size": Probe(step_size.probe, "how far does an update move the policy?"),
    "dropout": Probe(dropout.probe, "is the same forward the same twice?", cheap=False),
    "accumulation": Probe(accumulation.probe, "do micro-batches add up?", cheap=False),
    "kl-sign": Probe(kl_sign.probe, "does the KL penalty pull back?", cheap=False),
    "dead-groups": Probe(dead_groups.probe, "how many groups will teach nothing?", cheap=False),
    "temperature": Probe(temperature.probe, "do a group's rollouts differ?", cheap=False),
    "group-size": Probe(group_size.probe, "are groups large enough?", cheap=False),
    "parser": Probe(parser.probe, "does the parser lose right answers?", cheap=False),
    "wrong-gold": Probe(wrong_gold.probe, "does the model agree on other answers than gold?", cheap=False),
    "endings": Probe(endings.probe, "does the budget cut answers off?", cheap=False),
    "evaluation": Probe(evaluation.probe, "does evaluation play and score as training does?", cheap=False),
    "power": Probe(power.probe, "is the run long enough to show a gain?", cheap=False),
    "control": Probe(control.probe, "can the chain learn 16 gold answers?", cheap=False),
    "rl-control": Probe(rl_control.probe, "can RL learn 16 tasks?", cheap=False, full=True),
}
