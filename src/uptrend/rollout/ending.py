"""What ends a turn: stop tokens, stop texts and limits."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.records import Ending
from uptrend.rollout.sampler import Limits


class Endings:
    """Knows every token that ends a turn, by itself or because its text holds a stop text."""

    def __init__(self, tokenizer: Any, stop_ids: tuple[int, ...], vocabulary: int, device: torch.device) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = set(stop_ids)
        self._vocabulary = vocabulary
        self._device = device
        self._tables: dict[tuple[str, ...], Tensor] = {}

    def table(self, limits: Limits) -> Tensor:
        """For each token of the vocabulary, whether a turn surely ends with it."""
        if limits.stop not in self._tables:
            known = min(self._vocabulary, len(self._tokenizer))
            texts = self._tokenizer.batch_decode([[i] for i in range(known)]) if limits.stop else []
            ends = torch.zeros(self._vocabulary, dtype=torch.bool)
            ends[[i for i, text in enumerate(texts) if any(stop in text for stop in limits.stop)]] = True
            ends[[i for i in self._stop_ids if i < self._vocabulary]] = True
            self._tables[limits.stop] = ends.to(self._device)
        return self._tables[limits.stop]

    def find(self, ids: NDArray[np.int64], limits: Limits) -> tuple[int, Ending]:
        """How many of the sampled tokens belong to the turn, and what ended it."""
        for count, token in enumerate(ids, 1):
            if int(token) in self._stop_ids:
                return count, Ending.STOP_TOKEN
            if limits.stop and self._has_stop(ids[:count], limits.stop):
                return count, Ending.STOP_TEXT
        return len(ids), Ending.LENGTH if len(ids) == limits.max_tokens else Ending.CONTEXT_FULL

    def _has_stop(self, ids: NDArray[np.int64], stop: tuple[str, ...]) -> bool:
        longest = max(len(s.encode()) for s in stop)  # a token is at least a byte of it
        text = self._tokenizer.decode(ids[-max(16, longest) :])
        return any(s in text for s in stop)
