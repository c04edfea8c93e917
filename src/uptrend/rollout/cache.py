"""Keys and values of all streams, in pages of one pool.

A stream has a list of pages, in the order of its tokens. Pages that a prompt fills are shared by
the streams that begin with it. Nothing is moved or copied when streams come and go: only lists of
pages change. Page 0 belongs to nobody: rows and tokens that only fill up a shape write there.

The pool grows as streams need it, up to a budget, and shrinks again when little of it is used.

i = layer, k = key-value head, s = slot (place of a token in the pool), d = head dimension, n = row,
p = page of a row, q = new token, l = place in a context.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from uptrend.policy.memory import free_bytes

# Tokens per page.
PAGE = {"cuda": 64, "cpu": 32}
# Pages that a prompt must fill to be shared. Fewer are copied on a CPU, where attention over pages
# that lie in order needs no copy of them for each token.
LEAST_SHARED = {"cuda": 1, "cpu": 8}
# Part of the free memory that the pool may take, where no budget is given.
SHARE = 0.4
# Loads of weights over which the pool must have been too large before it shrinks.
LOADS = 3


class PagedCache:
    """A key-value cache that transformers' models write into through `update`."""

    def __init__(
        self,
        shape_ikd: tuple[int, int, int],
        device: torch.device,
        dtype: torch.dtype,
        budget: float | None = None,
        on_move: Callable[[], None] = lambda: None,
    ) -> None:
        """Make an empty pool of up to `budget` bytes; `on_move` is called when its address has
        changed.
        """
        layers, heads, size = shape_ikd
        self.page = PAGE[device.type]
        self.least_shared = LEAST_SHARED[device.type]
        self.pool = torch.zeros(layers, 2, heads, self.page, size, dtype=dtype, device=device)
        self.page_bytes = self.pool.nbytes
        self.is_sliding = [False] * len(self.pool)  # asked for by transformers' masking
        self.reach = 0  # length that attention over rows covers, a multiple of a page
        self._budget = budget
        self._on_move = on_move
        # a heap: the lowest first, so that pages taken together lie in order
        self._free: list[int] = []
        self._holders: Counter[int] = Counter()
        self._peak = 0
        self._peaks = deque[int](maxlen=LOADS)
        self._order: tuple[int, int] | None = None
        self._pages_np: Tensor | None = None
        self._slots = self._slots_l = torch.empty(0)

    @property
    def pages(self) -> int:
        """Pages of the pool, without that of nobody."""
        return self.pool.shape[3] // self.page - 1

    @property
    def used(self) -> int:
        """Pages that streams have."""
        return len(self._holders)

    @property
    def most(self) -> int:
        """Pages that the budget holds."""
        if self._budget is None:
            self._budget = SHARE * free_bytes(self.pool.device)
        return max(0, int(self._budget // self.page_bytes) - 1)

    def pages_for(self, tokens: int) -> int:
        """Return the number of pages that hold so many tokens."""
        return -(-tokens // self.page)

    def reserve(self, count: int) -> None:
        """Grow, as far as the budget goes, so that so many pages more can be taken."""
        wanted = min(self.used + count, self.most)
        if wanted > self.pages:
            self._resize(min(max(wanted, 2 * self.pages), self.most))

    def take(self, count: int) -> list[int] | None:
        """Take pages; None where not so many are left."""
        self.reserve(count)
        if count > len(self._free):
            return None
        pages = [heapq.heappop(self._free) for _ in range(count)]
        self.share(pages)
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Let one more stream have these pages."""
        self._holders.update(pages)
        self._peak = max(self._peak, self.used)

    def give(self, pages: Sequence[int]) -> None:
        """Take these pages from a stream; they are free once no other has them."""
        for page in pages:
            self._holders[page] -= 1
            if not self._holders[page]:
                del self._holders[page]
                heapq.heappush(self._free, page)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy pages; layer by layer, as the copy in between takes memory."""
        if sources:
            pages = torch.tensor([sources, targets]).to(self.pool.device)
            for layer in self.pool.view(*self.pool.shape[:3], -1, self.page, self.pool.shape[4]):
                layer[:, :, pages[1]] = layer[:, :, pages[0]]

    def settle(self) -> None:
        """Note that new weights come; give memory back where the last ones needed less than half of
        the pool.
        """
        self._peaks.append(self._peak)
        self._peak = self.used
        wanted = max(self._peaks)
        if (
            len(self._peaks) == LOADS
            and 2 * wanted < self.pages
            and max(self._holders, default=0) <= wanted
        ):
            self._resize(wanted)

    def _resize(self, pages: int) -> None:
        had = self.pages
        shape = list(self.pool.shape)
        shape[3] = (pages + 1) * self.page
        old = self.pool
        self.pool = self.pool.new_zeros(shape)
        kept = min(old.shape[3], shape[3])
        self.pool[:, :, :, :kept] = old[:, :, :, :kept]
        self._free = [page for page in self._free if page <= pages] + list(
            range(had + 1, pages + 1)
        )
        heapq.heapify(self._free)
        self._on_move()

    # One new token for each row.
    def cover(self, length: int, firsts: Sequence[int] = ()) -> None:
        """Let attention reach so far, until the next call.

        `firsts` are the rows' first pages, 0 where further ones do not follow in order. At equal
        distances rows are read where they are, else from a copy for each token.
        """
        self.reach = self.pages_for(length) * self.page
        step = firsts[1] - firsts[0] if len(firsts) > 1 else 1
        in_order = bool(firsts) and all(firsts) and step > 0
        in_order = in_order and list(firsts) == list(range(firsts[0], firsts[-1] + 1, step))
        fits = in_order and firsts[-1] * self.page + self.reach <= self.pool.shape[3]
        self._order = (firsts[0], step) if fits else None

    def aim(self, positions_n: Tensor, table_np: Tensor) -> Tensor:
        """Set the places of one new token per row; return the mask of what each may see, [n, 1, 1,
        l].
        """
        pages_n = table_np.gather(1, positions_n[:, None] // self.page).squeeze(1)
        self._slots = pages_n * self.page + positions_n % self.page
        self._pages_np = table_np[:, : self.reach // self.page]
        return (torch.arange(self.reach, device=self.pool.device) <= positions_n[:, None])[
            :, None, None
        ]

    def append(self, layer: int, keys_nkd: Tensor, values_nkd: Tensor) -> tuple[Tensor, Tensor]:
        """Write each row's new key and value; return all of the rows', [n, k, l, d]."""
        return self.update(keys_nkd[:, :, None], values_nkd[:, :, None], layer)

    # New tokens of several streams, back to back.
    def aim_packed(self, slots_q: Tensor, slots_l: Tensor | None) -> None:
        """Set the slots of new tokens, and of all tokens of their contexts; None where these are
        the same.
        """
        self._slots = slots_q
        self._pages_np = None
        self._slots_l = slots_q if slots_l is None else slots_l

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new tokens' keys and values ([n, k, q, d]); return those of all that may be
        seen.
        """
        pool = self.pool[layer]
        keys = keys.to(pool.dtype)
        values = values.to(pool.dtype)
        for part, new in zip(pool, (keys, values), strict=True):
            part[:, self._slots] = new.transpose(0, 1).flatten(1, 2)
        if self._pages_np is None:
            if self._slots_l is self._slots:
                return keys, values
            whole = pool.index_select(2, self._slots_l)[:, None]
        elif self._order is not None:
            first, step = (pages * self.page * pool.shape[3] for pages in self._order)
            whole = pool.as_strided(
                (2, len(keys), pool.shape[1], self.reach, pool.shape[3]),
                (pool.stride(0), step, pool.stride(1), pool.stride(2), 1),
                pool.storage_offset() + first,
            )
        else:
            by_page = pool.view(2, pool.shape[1], -1, self.page * pool.shape[3])
            chosen = by_page.index_select(2, self._pages_np.flatten())
            whole = chosen.view(2, pool.shape[1], len(keys), self.reach, -1).transpose(1, 2)
        return whole[0], whole[1]

    # transformers asks for it; unused with explicit positions.
    def get_seq_length(self, *_: Any) -> int:
        return 0
