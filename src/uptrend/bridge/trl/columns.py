"""TRL's padded tensors as the token columns of our rows.

Roles and turns come from what the sampler gave back, never from TRL's own masks: those are what is looked into.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import MODEL, PROMPT, TOOL, TrlBatch, as_numpy, roles_of
from uptrend.records import Sequence
from uptrend.records.rollout import Floats


class Columns:
    """TRL's padded tensors, cut into one row a rollout."""

    def __init__(self, batch: TrlBatch, settings: Any) -> None:
        self._batch = batch
        out = batch.output
        self._prompt_ids, self._prompt_mask = as_numpy(out["prompt_ids"]), as_numpy(out["prompt_mask"]) != 0
        self.width = self._prompt_ids.shape[1]
        mask = out["completion_mask"] if out.get("tool_mask") is None else out["completion_mask"] * out["tool_mask"]
        self._weights = loss_weights(as_numpy(mask), settings.loss, settings.max_tokens)
        self._attention = np.concatenate([self._prompt_mask, as_numpy(out["completion_mask"]) != 0], axis=1)
        self._advantages = as_numpy(out["advantages"])
        self._sampler, self._reference = (
            None if out.get(key) is None else as_numpy(out[key])
            for key in ("sampling_per_token_logps", "ref_per_token_logps")
        )
        self._learner = np.full(mask.shape, np.nan)
        for seen in batch.passes:
            rows = as_numpy(seen.rows)
            self._learner[rows] = as_numpy(seen.logprobs)
            self._attention[rows] = as_numpy(seen.attention) != 0

    def tokens(self, row: int) -> Sequence:
        """One rollout's tokens, without padding."""
        batch = self._batch
        prompt = self._prompt(row)
        written = batch.written[row]
        roles, turns = roles_of(prompt, written, batch.calls, row) if batch.calls else self._told_roles(row, prompt)
        model = roles[len(prompt) :] == MODEL
        size, before = len(written), len(prompt)
        versions = np.where(roles == MODEL, batch.version, -1).astype(np.int32)
        return Sequence(
            ids=np.array(prompt + written, np.int32), turns=turns, roles=roles, versions=versions,
            sampler=_wide(before, size, model, self._sampler, row),
            weights=np.concatenate([np.zeros(before), self._weights[row, :size]]).astype(np.float32),
            attended=np.concatenate(
                [self._attention[row, self.width - before : self.width], self._attention[row, self.width :][:size]]
            ),
            advantages=self._advantage(row, before, size),
            learner=_wide(before, size, model, self._learner, row),
            reference=None if self._reference is None else _wide(before, size, model, self._reference, row),
        )  # fmt: skip

    def _prompt(self, row: int) -> list[int]:
        """The prompt as the sampler was given it; by TRL's mask where nobody saw it sampled."""
        calls = self._batch.calls
        if calls and len(calls[0].prompts) == self._batch.size:
            return calls[0].prompts[row]
        ids: list[int] = self._prompt_ids[row][self._prompt_mask[row]].astype(int).tolist()
        return ids

    def _told_roles(self, row: int, prompt: list[int]) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
        """Roles by TRL's own tool mask, where the user's function sampled."""
        mask = self._batch.output.get("tool_mask")
        size = len(self._batch.written[row])
        model = np.ones(size, bool) if mask is None else as_numpy(mask)[row, :size] != 0
        roles = np.concatenate([np.full(len(prompt), PROMPT), np.where(model, MODEL, TOOL)])
        return roles.astype(np.int8), np.zeros(len(roles), np.int32)

    def _advantage(self, row: int, before: int, size: int) -> Floats:
        """One advantage a rollout, or one a token where a subclass gives those."""
        given = self._advantages[row]
        tail = np.full(size, given) if np.ndim(given) == 0 else np.asarray(given)[:size]
        return np.concatenate([np.zeros(before), tail]).astype(np.float32)


def loss_weights(mask: NDArray[np.float64], loss: str, max_tokens: int) -> NDArray[np.float64]:
    """Each token's weight in TRL's loss, by its formula for the loss type, over the generation."""
    mask = mask.astype(np.float64)
    lengths = np.maximum(1.0, mask.sum(1, keepdims=True))
    if loss in ("grpo", "sapo"):
        return np.asarray(mask / lengths / len(mask))
    if loss == "dr_grpo":
        return np.asarray(mask / (len(mask) * max_tokens))
    return np.asarray(mask / max(1.0, float(mask.sum())))


def _wide(before: int, size: int, model: NDArray[np.bool_], values: Any, row: int) -> Floats:
    """A completion's values over the whole row: NaN on what the model did not write."""
    column = np.full(before + size, np.nan, np.float32)
    if values is not None:
        column[before:] = np.where(model, values[row, :size], np.nan)
    return column
