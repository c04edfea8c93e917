"""Masks and tokens: what the learner sees, what it trains, and whether that is what was sampled."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from benchmarks.faults.fault import Alter, Fault, Strength, gathered, learner, wrapped
from numpy.typing import NDArray

from uptrend.config import Config
from uptrend.records import Role, Rollout
from uptrend.records import Sequence as Tokens

MODEL, PROMPT, TOOL = int(Role.MODEL), int(Role.PROMPT), int(Role.TOOL)
Roles = NDArray[np.int8]


def attending(sees: Callable[[Roles], NDArray[np.bool_]]) -> Alter:
    """Let the learner's attention see only tokens of some roles."""

    def wrap(layout: Any) -> Any:
        def run(rollouts: Sequence[Rollout], config: Config, *, recorded: bool = False) -> Any:
            exp = layout(rollouts, config, recorded=recorded)
            roles = [s.roles for r in rollouts for s in r.sequences]
            sequences = [
                replace(x, attended=x.attended & sees(by))
                for x, by in zip(exp.sequences, roles, strict=True)
            ]
            return replace(exp, sequences=sequences)

        return run

    return wrapped(layout=wrap)


def training(change: Callable[[Tokens, Config], Tokens]) -> Alter:
    """Lay out changed sequences: those with the role of the model are trained. Records keep the
    true roles.
    """

    def wrap(layout: Any) -> Any:
        def run(rollouts: Sequence[Rollout], config: Config, *, recorded: bool = False) -> Any:
            changed = [
                replace(r, sequences=tuple(change(s, config) for s in r.sequences))
                for r in rollouts
            ]
            return layout(changed, config, recorded=recorded)

        return run

    return wrapped(layout=wrap)


blind = attending(lambda roles: roles == MODEL)
"""verifiers 0.1.2 to 0.1.6 passed the loss mask as the attention mask: neither question nor tool
results are seen.
"""


def _leave_out(s: Tokens, places: NDArray[Any]) -> Tokens:
    roles = s.roles.copy()
    roles[places] = PROMPT
    return replace(s, roles=roles)


def _tools_too(s: Tokens, config: Config) -> Tokens:
    """Train a tool's tokens as the model's own, with a log-probability of 0, as far as the layout
    has room.
    """
    said = np.where(s.roles == TOOL, MODEL, s.roles).astype(np.int8)
    whole = replace(
        s, roles=said, sampler=np.where(s.roles == TOOL, 0.0, s.sampler).astype(np.float32)
    )
    return _leave_out(
        whole,
        np.flatnonzero(said == MODEL)[config.sampling.max_tokens * config.sampling.max_turns :],
    )


def _no_stops(s: Tokens, _: Config) -> Tokens:
    ends = s.sampled & np.append(s.roles[1:] != MODEL, True)  # the last token of each turn
    return _leave_out(s, ends & (s.ids < 4))  # vocabularies begin with their special tokens


def _half(s: Tokens, _: Config) -> Tokens:
    return _leave_out(s, np.flatnonzero(s.sampled)[1::2])


def _last_turn(s: Tokens, _: Config) -> Tokens:
    places = np.flatnonzero(s.sampled)
    starts = np.flatnonzero(np.diff(places, prepend=-2) > 1)
    return _leave_out(s, places[: starts[-1]] if len(starts) else places[:0])


def _retold(change: Callable[[Tokens], Tokens]) -> Alter:
    """Change the tokens of gathered rollouts: what is recorded and learned is not what was
    sampled.
    """
    return gathered(
        lambda rollouts: [replace(r, sequences=tuple(map(change, r.sequences))) for r in rollouts]
    )


def _other_ids(s: Tokens) -> Tokens:
    """Give the first token of each turn a neighboring id, as tokenizing its text again might."""
    ids, first = s.ids.copy(), s.sampled & np.append(True, s.roles[:-1] != MODEL)
    ids[first] = np.where(ids[first] > 20, ids[first] - 1, ids[first] + 1)
    return replace(s, ids=ids)


def _doubled(s: Tokens) -> Tokens:
    """Repeat the first token, as a template that adds a second BOS does."""
    columns = {name: getattr(s, name) for name in ("ids", "turns", "roles", "versions", "sampler")}
    return replace(
        s, **{name: np.concatenate([column[:1], column]) for name, column in columns.items()}
    )


def _left_over_positions(pack: Any) -> Any:
    """Count positions on through a row, whatever stands before."""
    return lambda *given: [replace(x, positions_t=torch.arange(len(x.ids_t))) for x in pack(*given)]


def _unmasked(pack: Any) -> Any:
    """Let sequences see those before them."""

    def run(*given: Any) -> Any:
        for micro in pack(*given):
            ends = torch.tensor([0, len(micro.ids_t)], dtype=torch.int32)
            yield replace(
                micro, starts_n=ends, key_starts_n=ends, longest=len(micro.ids_t), keys_k=None
            )

    return run


FAULTS = (
    Fault("mask.attention-blind", (
        Strength("attention-blind", blind, probe="prompt-swap"),
        Strength("to tools alone", attending(lambda roles: roles != TOOL), two_turns=True))),
    Fault("mask.tool-trained", (Strength("tools too", training(_tools_too), {"sampling.max_tokens": 30}),),
          two_turns=True),
    Fault("mask.model-untrained", (
        Strength("half-untrained", training(_half), probe="masks"),
        Strength("all but the last turn", training(_last_turn), two_turns=True))),
    Fault("mask.stop-untrained", (Strength("stop-untrained", training(_no_stops), probe="masks"),)),
    Fault("tokens.retokenized", (Strength("other-ids", _retold(_other_ids), probe="identity"),)),
    Fault("tokens.template", (Strength("double-first-token", _retold(_doubled), probe="identity"),)),
    Fault("tokens.padding", (
        Strength("left-over-positions", learner(pack=_left_over_positions), probe="padding"),)),
    Fault("mask.documents-leak", (
        Strength("rows-unmasked", learner(pack=_unmasked), probe="neighbors"),), also=("tokens.padding",)),
)  # fmt: skip
