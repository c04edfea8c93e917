"""Faults of other trainers, planted into ours at the seam where the real bug was; each is undone when it is left.

    with PLANTS["attention-blind"].plant():
        ...                                  # everything that trains or probes in here has the fault

`needs` are config values without which the fault can't show, and `id` is the finding that has to come first.
"""

# ruff: noqa: ARG001, ARG002, ARG005 (what is replaced has a signature)

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import uptrend.training.learner as learner
from uptrend.algo import batch as algo_batch
from uptrend.algo.kl import ESTIMATORS
from uptrend.policy import optimizer as optimizers
from uptrend.policy.policy import Policy
from uptrend.records import Message, Role, Task
from uptrend.rollout import decoder, play
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.tasks.arithmetic.family import Family
from uptrend.tasks.arithmetic.play import OneTurn
from uptrend.tasks.pool import Pool
from uptrend.training import loop

MODEL, PROMPT = int(Role.MODEL), int(Role.PROMPT)


@dataclass(frozen=True)
class PlantedFault:
    """One fault."""

    id: str
    """The catalogue's id of it."""
    plant: Callable[[], AbstractContextManager[Any]]
    """Plants it for as long as the context is entered."""
    needs: tuple[str, ...] = ()
    """Config overrides that go with it."""
    probe: str = ""
    """The probe that looks for it; one of the cheap ones where empty."""
    tools: bool = False
    """Whether it needs tasks with tools to show."""


@contextmanager
def swapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """An attribute (or a dictionary's item) replaced by what `make` makes of it."""
    is_item = isinstance(owner, dict)
    before = owner[name] if is_item else getattr(owner, name)
    put = owner.__setitem__ if is_item else lambda key, value: setattr(owner, key, value)
    put(name, make(before))
    try:
        yield
    finally:
        put(name, before)


def on_lines(change: Callable[[Any, np.ndarray], Any]) -> Callable[[], AbstractContextManager[Any]]:
    """Changes each line that is made for the learner, given its roles."""

    def wrap(make: Any) -> Any:
        return lambda ids, roles, visible, group, rollout: change(make(ids, roles, visible, group, rollout), roles)

    return lambda: swapped(learner, "_line", wrap)


def _blind(line: Any, roles: np.ndarray) -> Any:
    return replace(line, visible=line.visible & (roles == MODEL))


def _tools_too(line: Any, roles: np.ndarray) -> Any:
    return replace(line, sampled=(roles != PROMPT).nonzero()[0][:60])  # there is no room for more in small recipes


def _no_stops(line: Any, roles: np.ndarray) -> Any:
    ends = np.append(roles[1:] != MODEL, True)  # the last of each thing that the model says
    ends &= line.ids < 4  # vocabularies begin with their special tokens
    return replace(line, sampled=((roles == MODEL) & ~ends).nonzero()[0])


def _half(line: Any, roles: np.ndarray) -> Any:
    return replace(line, sampled=line.sampled[::2])


@contextmanager
def dropout_on() -> Iterator[None]:
    """Dropout that stays on while learning."""

    def noisy(hidden: Any) -> Any:
        def run(self: Policy, *x: Any, reference: bool = False) -> Any:
            return functional.dropout(hidden(self, *x, reference=reference), 0.1, self.model.training)

        return run

    def always(init: Any) -> Any:
        return lambda self, policy, needed: init(self, policy, True)

    with swapped(Policy, "hidden", noisy), swapped(learner._Training, "__init__", always):
        yield


def _old_weights(sampler: Any) -> Any:
    """A sampler on a copy of the weights that nobody renews."""
    from copy import deepcopy

    def make(policy: Policy) -> Any:
        class Frozen(InProcessSampler):
            def load(self, tensors: Any, version: int) -> None:
                self._version = version

        model = deepcopy(policy.model).requires_grad_(False)
        return Frozen(replace(policy, model=model, reference=None))

    return make


def _deaf(load: Any) -> Any:
    return lambda self, tensors, version: None


def _without(count: int) -> Callable[[Any], Any]:
    """Leaves out the copying of modules that go together in this number."""
    return lambda copy: lambda modules, into: None if len(modules) == count and _filled(into) else copy(modules, into)


def _filled(into: Any) -> bool:
    """Whether it has been copied once: the first copy is right, later ones are forgotten."""
    seen = getattr(_filled, "seen", set())
    _filled.seen = seen | {id(into.weight)}  # type: ignore[attr-defined]
    return id(into.weight) in seen


def _remembering(context: Any) -> Any:
    """A prefix cache that no new weights empty."""
    kept: dict[Any, Any] = {}

    def compute(self: Any, ids_ut: torch.Tensor, lengths_u: torch.Tensor) -> Any:
        out = context(self, ids_ut, lengths_u)
        for u, ids in enumerate(map(tuple, ids_ut.tolist())):
            key = (id(self), ids[: int(lengths_u[u])])
            width = int(lengths_u[u])
            if key in kept:
                logits, keys, values = kept[key]
                out[0][u], out[1][:, u, :, :width], out[2][:, u, :, :width] = logits, keys, values
            else:
                kept[key] = out[0][u].clone(), out[1][:, u, :, :width].clone(), out[2][:, u, :, :width].clone()
        return out

    return compute


def on_gathered(change: Callable[[list[Any]], list[Any]]) -> Callable[[], AbstractContextManager[Any]]:
    """Changes the rollouts of each step."""

    def wrap(gather: Any) -> Any:
        def run(*x: Any) -> Any:
            gathered = gather(*x)
            return replace(gathered, rollouts=change(gathered.rollouts))

        return run

    return lambda: swapped(loop, "gather", wrap)


def _with_rewards(rollouts: list[Any], rewards: list[Any]) -> list[Any]:
    return [replace(r, reward=reward) for r, reward in zip(rollouts, rewards, strict=True)]


def _shift(rollouts: list[Any]) -> list[Any]:
    rewards = [r.reward for r in rollouts]
    return _with_rewards(rollouts, [rewards[-1], *rewards[:-1]])


def _one_for_all(rollouts: list[Any]) -> list[Any]:
    return _with_rewards(rollouts, [rollouts[0].reward] * len(rollouts))


@contextmanager
def groups_by_position() -> Iterator[None]:
    """Rollouts are shuffled, and advantages made from every so many in a row."""

    def shuffle(rollouts: list[Any]) -> list[Any]:
        return random.Random(0).sample(rollouts, len(rollouts))

    def by_position(make: Any) -> Any:
        return lambda rewards, groups, **how: make(
            rewards, torch.arange(len(rewards)) // int((groups == groups[0]).sum()), **how
        )

    with on_gathered(shuffle)(), swapped(loop, "advantages", by_position):
        yield


def _negated(make: Any) -> Any:
    return lambda *x, **how: -make(*x, **how)


def _against(objective: Any) -> Any:
    return lambda logprobs, entropy, part, learning: objective(
        logprobs, entropy, replace(part, advantages_bt=-part.advantages_bt), learning
    )


def _sliced(respond: Any) -> Any:
    """The reward cuts the prompt's length off a completion that has no prompt in it."""

    async def run(self: Any, message: Message) -> Any:
        prompt = "".join(m.content for m in self.messages)
        return await respond(self, replace(message, content=message.content[len(prompt) :]))

    return run


def _noisy(score: Any) -> Any:
    async def run(self: Any) -> Any:
        reward = await score(self)
        return replace(reward, total=reward.total + random.choice((-0.1, 0.0, 0.1)))

    return run


def _elsewhere(init: Any) -> Any:
    """The optimizer holds a copy of the weights: what it moves is not what the model uses."""

    def run(self: Any, flat: Any, learning: Any) -> None:
        init(self, flat, learning)
        copy = torch.nn.Parameter(flat.values.data.clone())
        copy.grad = flat.values.grad
        self.adamw = torch.optim.AdamW([copy], lr=learning.lr)

    return run


def _at_temperature_1(logprobs: Any) -> Any:
    return lambda self, hidden, targets, temperature, **how: logprobs(self, hidden, targets, 1.0, **how)


def _respelled(task: Task) -> Task:
    """The same question with another id."""
    first = task.messages[0]
    return replace(task, messages=(replace(first, content=first.content.replace(" ", "  ", 1)),), id="")


def _leaking(train: Any) -> Any:
    def run(self: Any, count: int, exclude: Any = ()) -> list[Task]:
        held = [_respelled(task) for task in self.heldout(count)]
        return [*train(self, count, exclude), *held][-count:]

    return run


def _repeating(train: Any) -> Any:
    def run(self: Any, count: int, exclude: Any = ()) -> list[Task]:
        tasks = train(self, count, exclude)
        return [*tasks[: len(tasks) // 2], *map(_respelled, tasks[: len(tasks) - len(tasks) // 2])]

    return run


def _by_difficulty(order: Any) -> Any:
    return lambda self, index, epoch: sorted(order(self, index, epoch), key=lambda task: task.difficulty)


def _drawn_twice(draw: Any) -> Any:
    def run(self: Any, step: int, count: int, cursor: Any) -> Any:
        drawn, cursor = draw(self, step, count, cursor)
        return [drawn[i // 2] for i in range(count)], cursor

    return run


def _left_over_positions(pack: Any) -> Any:
    """Every row counts its places on, whatever stands before."""
    return lambda *x: [replace(micro, positions_rt=None) for micro in pack(*x)]


def _unmasked(pack: Any) -> Any:
    """Rows that share a prompt see each other."""
    return lambda *x: [replace(micro, mask=None) for micro in pack(*x)]


def _other_reference(hidden: Any) -> Any:
    def run(self: Policy, *x: Any, reference: bool = False) -> Any:
        states = hidden(self, *x, reference=reference)
        return states * 1.2 if reference else states

    return run


def _normalized(rows: Any) -> Any:
    """Each micro-batch is its own mean."""

    def run(self: Any, *x: Any) -> Any:
        part = rows(self, *x)
        return replace(part, weights_bt=part.weights_bt / part.weights_bt.sum().clamp(min=1e-9))

    return run


def _other_ids(say: Any) -> Any:
    def run(self: Any, said: Any, turn: int) -> None:
        ids = said.ids.copy()
        ids[:1] = np.where(ids[:1] > 20, ids[:1] - 1, ids[:1] + 1)
        say(self, replace(said, ids=ids), turn)

    return run


def _doubled(read: Any) -> Any:
    return lambda self, ids, turn, role: read(self, [ids[0], *ids], turn, role)


def _decayed(rate: Any) -> Any:
    return lambda learning, step: rate(learning, step) * 0.8**step


PLANTED_FAULTS: dict[str, PlantedFault] = {
    "attention-blind": PlantedFault("mask.attention-blind", on_lines(_blind)),
    "dropout-on": PlantedFault("policy.dropout-on", dropout_on, probe="dropout"),
    "weights-not-sent": PlantedFault("sync.stale-weights", lambda: swapped(loop, "InProcessSampler", _old_weights)),
    "copy-not-renewed": PlantedFault("sync.stale-weights", lambda: swapped(InProcessSampler, "load", _deaf)),
    "mlp-not-sent": PlantedFault("sync.partial", lambda: swapped(decoder, "_copy", _without(2))),
    "prefix-cache": PlantedFault("sync.prefix-cache", lambda: swapped(InProcessSampler, "_context", _remembering)),
    "tools-trained": PlantedFault("mask.tool-trained", on_lines(_tools_too), tools=True),
    "stop-untrained": PlantedFault("mask.stop-untrained", on_lines(_no_stops)),
    "half-untrained": PlantedFault("mask.model-untrained", on_lines(_half)),
    "advantages-negated": PlantedFault("advantage.sign", lambda: swapped(loop, "advantages", _negated)),
    "loss-negated": PlantedFault("advantage.sign", lambda: swapped(learner, "objective", _against)),
    "groups-by-position": PlantedFault("advantage.wrong-groups", groups_by_position),
    "wrong-slice": PlantedFault("reward.gold-rejected", lambda: swapped(OneTurn, "respond", _sliced)),
    "rewards-shifted": PlantedFault("reward.misaligned", on_gathered(_shift)),
    "one-reward-for-all": PlantedFault("reward.wrong-length", on_gathered(_one_for_all)),
    "noisy-scorer": PlantedFault("reward.nondeterministic", lambda: swapped(OneTurn, "score", _noisy)),
    "bf16-small-lr": PlantedFault(
        "precision.update-underflow", nullcontext, ("model.weights=bf16", "learning.lr=5e-6")
    ),
    "optimizer-elsewhere": PlantedFault(
        "optimizer.frozen", lambda: swapped(optimizers.Optimizer, "__init__", _elsewhere)
    ),
    "temperature-ignored": PlantedFault(
        "sampling.truncated-distribution", lambda: swapped(Policy, "logprobs", _at_temperature_1)
    ),
    "top-p": PlantedFault(
        "sampling.truncated-distribution", nullcontext, ("sampling.top_p=0.6", "sampling.temperature=1.0")
    ),
    "held-out-leaks": PlantedFault("data.leak", lambda: swapped(Family, "train", _leaking)),
    "tasks-repeat": PlantedFault("data.duplicates", lambda: swapped(Family, "train", _repeating)),
    "tasks-sorted": PlantedFault("data.order", lambda: swapped(Pool, "_order", _by_difficulty)),
    "drawn-twice": PlantedFault("data.batch-exceeds", lambda: swapped(Pool, "draw", _drawn_twice)),
    "left-over-positions": PlantedFault("tokens.padding", lambda: swapped(learner, "pack", _left_over_positions)),
    "rows-unmasked": PlantedFault("tokens.padding", lambda: swapped(learner, "pack", _unmasked)),
    "other-reference": PlantedFault(
        "kl.reference",
        lambda: swapped(Policy, "hidden", _other_reference),
        ("learning.kl.beta=0.1", "learning.skip_dead=false"),
    ),
    "kl-negated": PlantedFault(
        "kl.sign",
        lambda: swapped(ESTIMATORS, "k3", lambda k3: lambda a, b: -k3(a, b)),
        ("learning.kl.beta=0.5", "learning.skip_dead=false"),
        "kl-sign",
    ),
    "mean-by-micro-batch": PlantedFault(
        "optimizer.accumulation", lambda: swapped(algo_batch.Batch, "rows", _normalized), probe="accumulation"
    ),
    "other-ids": PlantedFault("tokens.retokenized", lambda: swapped(play._Transcript, "say", _other_ids)),
    "double-first-token": PlantedFault("tokens.template", lambda: swapped(play._Transcript, "read", _doubled)),
    "schedule-eats": PlantedFault("optimizer.schedule", lambda: swapped(learner, "learning_rate", _decayed)),
    "lr-tiny": PlantedFault("optimizer.lr-small", nullcontext, ("learning.lr=1e-9",)),
    "lr-huge": PlantedFault("optimizer.lr-large", nullcontext, ("learning.lr=50",)),
    "prompt-limit": PlantedFault("context.prompt-truncated", nullcontext, ("sampling.max_prompt=10",)),
    "budget-too-small": PlantedFault("context.completion-truncated", nullcontext, ("sampling.max_tokens=1",)),
    "eval-in-chat": PlantedFault("eval.unlike-training", nullcontext, ("eval.chat=true",), "evaluation"),
    "groups-of-two": PlantedFault("sampling.few-generations", nullcontext, ("sampling.size=2",), "group-size"),
    "temperature-low": PlantedFault(
        "sampling.temperature-low", nullcontext, ("sampling.temperature=0.02",), "temperature"
    ),
}
