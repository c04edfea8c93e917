"""Keys and values of many streams in static buffers, each row at its own length.

A row is a stream. New tokens are written at the row's own positions, attention is told by a mask how far each
row may look, and rows move only when streams that are done are retired. Buffers keep their addresses while
they are large enough, so that a CUDA graph can be replayed over them.

i = layer, n = row, k = key-value head, l = place in the context, d = head dimension, q = new token.
"""

from typing import Any

import torch
from torch import Tensor

# Lengths are rounded up to this, so that buffers are reused between steps.
ROUND = 32
# And to this on a GPU, where each length that attention covers has a graph of its own.
ROUND_ON_GPU = 256


class SlotCache:
    """A key-value cache that transformers' models write into through `update`."""

    def __init__(self, layers: int, device: torch.device) -> None:
        self.keys = torch.empty(layers, 0, 0, 0, 0)
        self.values = torch.empty(layers, 0, 0, 0, 0)
        self.is_sliding = [False] * layers  # asked for by transformers' masking
        self.reach = 0  # length that attention covers: as far as the rows at hand need, not to the end of the buffers
        self._device = device
        self._grain = ROUND if device.type == "cpu" else ROUND_ON_GPU
        self._positions = torch.empty(0)
        self._rows = torch.empty(0)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and length that fit."""
        return self.keys.shape[1], self.keys.shape[3]

    def reserve(self, rows: int, length: int, like: Tensor) -> bool:
        """Make room, keeping what is there; True where buffers moved. `like` is [i, n, k, l, d]."""
        have_rows, have_length = self.shape
        if rows <= have_rows and length <= have_length and like.dtype == self.keys.dtype:
            return False
        rows, length = max(rows, have_rows), max(self._rounded(length), have_length)
        shape = (like.shape[0], rows, like.shape[2], length, like.shape[4])
        for name in ("keys", "values"):
            old, new = getattr(self, name), torch.zeros(shape, dtype=like.dtype, device=self._device)
            if old.numel():
                new[:, :have_rows, :, :have_length] = old
            setattr(self, name, new)
        return True

    def permute(self, order: Tensor) -> None:
        """Put the first rows in another order, in place; layer by layer, as the copy in between takes memory."""
        for layer in (*self.keys, *self.values):
            layer[: len(order)] = layer[order]

    def fill(self, first: int, keys: Tensor, values: Tensor) -> None:
        """Copy prefilled contexts ([i, n, k, l, d]) into rows from `first` on, from their beginning."""
        rows, length = slice(first, first + keys.shape[1]), keys.shape[3]
        self.keys[:, rows, :, :length] = keys.to(self.keys.dtype)
        self.values[:, rows, :, :length] = values.to(self.values.dtype)

    def cover(self, length: int) -> None:
        """Let attention reach so far, until the next call: every position that is aimed at lies within."""
        self.reach = min(self._rounded(length), self.shape[1])

    def _rounded(self, length: int) -> int:
        return -(-length // self._grain) * self._grain

    def aim(self, positions_nq: Tensor) -> Tensor:
        """Set the positions of the next tokens of the first rows; return the mask of what each may see."""
        self._positions = positions_nq
        self._rows = torch.arange(positions_nq.shape[0], device=self._device)[:, None]
        return torch.arange(self.reach, device=self._device) <= positions_nq[:, None, :, None]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the new tokens' keys and values ([n, k, q, d]) and return all of the rows'."""
        mine, theirs = self.rows(layer, keys.shape[0])
        mine[self._rows, :, self._positions] = keys.transpose(1, 2).to(mine.dtype)
        theirs[self._rows, :, self._positions] = values.transpose(1, 2).to(theirs.dtype)
        return mine, theirs

    def rows(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        """Return the first rows' keys and values ([n, k, l, d]) as far as attention reaches, to read and to write."""
        return self.keys[layer, :n, :, : self.reach], self.values[layer, :n, :, : self.reach]

    # transformers asks for it; unused with explicit positions.
    def get_seq_length(self, *_: Any) -> int:
        return 0
