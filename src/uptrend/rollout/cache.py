"""Keys and values of many streams in static buffers, each row at its own length.

A row is a stream. New tokens are written at the row's own positions, attention is told by a mask how far each
row may look, and rows move only when streams that are done are retired. Buffers keep their addresses while
they are large enough, so that a CUDA graph can be replayed over them.

n = row, k = key-value head, l = place in the context, d = head dimension.
"""

from typing import Any

import torch
from torch import Tensor

ROUND = 32
"""Contexts are rounded up to this, so that buffers and graphs are reused between steps."""


class SlotCache:
    """A key-value cache that transformers' models write into through `update`."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self.keys: list[Tensor] = [torch.empty(0)] * layers
        self.values: list[Tensor] = [torch.empty(0)] * layers
        self.is_sliding = [False] * layers  # asked for by transformers' masking
        self._device = device
        self._positions = torch.empty(0)
        self._rows = torch.empty(0)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and length that fit."""
        first = self.keys[0]
        return (first.shape[0], first.shape[2]) if first.dim() == 4 else (0, 0)

    def reserve(self, rows: int, length: int, like: Tensor) -> bool:
        """Make room, keeping what is there; True where buffers moved. `like` has a key's heads, size and type."""
        have_rows, have_length = self.shape
        if rows <= have_rows and length <= have_length and like.dtype == self.keys[0].dtype:
            return False
        rows, length = max(rows, have_rows), max(-(-length // ROUND) * ROUND, have_length)
        shape = (rows, like.shape[1], length, like.shape[3])
        for buffers in (self.keys, self.values):
            for i, old in enumerate(buffers):
                new = torch.zeros(shape, dtype=like.dtype, device=self._device)
                if old.dim() == 4:
                    new[: old.shape[0], :, : old.shape[2]] = old
                buffers[i] = new
        return True

    def permute(self, order: Tensor) -> None:
        """Put rows in another order, in place."""
        for buffers in (self.keys, self.values):
            for buffer in buffers:
                buffer[: len(order)] = buffer[order]

    def fill(self, rows: slice, keys: list[Tensor], values: list[Tensor]) -> None:
        """Copy prefilled contexts into rows, from their beginning."""
        for mine, theirs in ((self.keys, keys), (self.values, values)):
            for buffer, new in zip(mine, theirs, strict=True):
                buffer[rows, :, : new.shape[2]] = new.to(buffer.dtype)

    def aim(self, positions_nq: Tensor) -> Tensor:
        """Say where the next tokens of the first rows go; gives the mask of what each may see."""
        n = positions_nq.shape[0]
        self._positions = positions_nq
        self._rows = torch.arange(n, device=self._device)[:, None]
        return torch.arange(self.shape[1], device=self._device) <= positions_nq[:, None, :, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the new tokens' keys and values ([n, k, q, d]) and give back all of the rows'."""
        n = keys.shape[0]
        self.keys[layer][self._rows, :, self._positions] = keys.transpose(1, 2).to(self.keys[layer].dtype)
        self.values[layer][self._rows, :, self._positions] = values.transpose(1, 2).to(self.values[layer].dtype)
        return self.keys[layer][:n], self.values[layer][:n]

    def get_seq_length(self, *_: Any) -> int:
        """Unused with explicit positions; transformers asks."""
        return 0
