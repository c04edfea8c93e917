"""Keys and values of all streams, in pages of one pool that grows up to a budget and shrinks again.

A stream has a list of pages, in the order of its tokens. Pages that a prompt fills are shared by
the streams that begin with it. Nothing is moved or copied when streams come and go: only lists of
pages change. Page 0 belongs to no stream: filler tokens and filler rows write there.

A token's cell is its place in the pool: page * page_tokens + its place in the page.

i = layer, k = key-value head, c = cell, d = head dimension, n = row, p = page of a row, q = new
token, l = place in a context.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from uptrend.policy.memory import free_bytes

PAGE_TOKENS = {"cuda": 64, "cpu": 32}
# Pages that a prompt must fill to be shared. A shorter one is copied on a CPU: the pages of a
# stream that shares some are not contiguous, and attention then copies its keys for every token.
MIN_SHARED_PAGES = {"cuda": 1, "cpu": 8}
# Share of the free memory that the pool may take if no budget is set.
POOL_MEMORY_SHARE = 0.4
# Loads of weights over which the pool must have been too large before it shrinks, so that one short
# step does not give away what the next one needs.
LOADS_BEFORE_SHRINKING = 3


class PagedCache:
    """A key-value cache that transformers' models write into through `update`."""

    def __init__(
        self,
        shape_ikd: tuple[int, int, int],
        device: torch.device,
        dtype: torch.dtype,
        max_bytes: float | None = None,
        on_resize: Callable[[], None] = lambda: None,
    ) -> None:
        """Make an empty pool of up to `max_bytes`; `on_resize` is called when its address has
        changed.
        """
        n_layers, n_heads, head_dim = shape_ikd
        self.page_tokens = PAGE_TOKENS[device.type]
        self.min_shared_pages = MIN_SHARED_PAGES[device.type]
        # [layer, keys or values, head, cell, channel], with page 0 alone at first
        self.pool = torch.zeros(
            n_layers, 2, n_heads, self.page_tokens, head_dim, dtype=dtype, device=device
        )
        self.page_bytes = self.pool.nbytes
        self.is_sliding = [False] * n_layers  # transformers' masking reads it
        # Places of each row that attention covers while rows decode, a multiple of a page.
        self.covered_tokens = 0

        self._max_bytes = max_bytes
        self._on_resize = on_resize
        # A heap, the lowest page first: pages that are taken together are contiguous if possible.
        self._free: list[int] = []
        self._n_holders: Counter[int] = Counter()  # streams that have each page
        self._peak_pages = 0
        self._peak_pages_by_load = deque[int](maxlen=LOADS_BEFORE_SHRINKING)

        # Set before each forward, read by `update` in every layer.
        self._new_cells = torch.empty(0)
        self._context_cells_l = torch.empty(0)
        self._pages_np: Tensor | None = None
        self._page_stride: tuple[int, int] | None = None  # first page of row 0, pages between rows

    # Pages of streams.

    @property
    def n_pages(self) -> int:
        """Pages of the pool, without page 0."""
        return self.pool.shape[3] // self.page_tokens - 1

    @property
    def n_used_pages(self) -> int:
        """Pages that streams have."""
        return len(self._n_holders)

    @property
    def max_pages(self) -> int:
        """Pages that the budget allows, without page 0; memory is measured at the first call."""
        if self._max_bytes is None:
            self._max_bytes = POOL_MEMORY_SHARE * free_bytes(self.pool.device)
        return max(0, int(self._max_bytes // self.page_bytes) - 1)

    def pages_for(self, tokens: int) -> int:
        """Return the number of pages that hold this many tokens."""
        return -(-tokens // self.page_tokens)

    def take(self, count: int) -> list[int] | None:
        """Take pages, growing the pool within its budget; None if too few are left."""
        needed = min(self.n_used_pages + count, self.max_pages)
        if needed > self.n_pages:
            # At least doubled, because each resize copies the pool and drops all graphs.
            self._resize(min(max(needed, 2 * self.n_pages), self.max_pages))
        if count > len(self._free):
            return None
        pages = [heapq.heappop(self._free) for _ in range(count)]
        self.share(pages)
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """Let one more stream have these pages."""
        self._n_holders.update(pages)
        self._peak_pages = max(self._peak_pages, self.n_used_pages)

    def give_back(self, pages: Sequence[int]) -> None:
        """Take these pages from one stream; a page is free once no other stream has it."""
        for page in pages:
            self._n_holders[page] -= 1
            if not self._n_holders[page]:
                del self._n_holders[page]
                heapq.heappush(self._free, page)

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy pages to other pages."""
        if not sources:
            return
        pages = torch.tensor([sources, targets]).to(self.pool.device)
        n_layers, _, n_heads, _, head_dim = self.pool.shape
        paged = self.pool.view(n_layers, 2, n_heads, -1, self.page_tokens, head_dim)
        # Layer by layer, because indexing makes a temporary copy.
        for layer in paged:
            layer[:, :, pages[1]] = layer[:, :, pages[0]]

    def shrink_if_oversized(self) -> None:
        """Free memory if streams needed less than half of the pool lately; call it once per load of
        weights.
        """
        self._peak_pages_by_load.append(self._peak_pages)
        self._peak_pages = self.n_used_pages
        needed = max(self._peak_pages_by_load)
        is_known = len(self._peak_pages_by_load) == LOADS_BEFORE_SHRINKING
        is_oversized = 2 * needed < self.n_pages
        # Pages in use keep their numbers, so none of them may lie beyond the new end.
        can_be_cut = max(self._n_holders, default=0) <= needed
        if is_known and is_oversized and can_be_cut:
            self._resize(needed)

    def _resize(self, n_pages: int) -> None:
        """Move the pool to one of another size; pages keep their numbers."""
        old_pool = self.pool
        old_n_pages = self.n_pages
        shape = list(old_pool.shape)
        shape[3] = (n_pages + 1) * self.page_tokens
        self.pool = old_pool.new_zeros(shape)
        n_common_cells = min(old_pool.shape[3], shape[3])
        self.pool[:, :, :, :n_common_cells] = old_pool[:, :, :, :n_common_cells]

        remaining = [page for page in self._free if page <= n_pages]
        added = list(range(old_n_pages + 1, n_pages + 1))
        self._free = remaining + added
        heapq.heapify(self._free)
        self._on_resize()

    # Decoding: one new token for each row.

    def cover(self, tokens: int, first_pages: Sequence[int] = ()) -> None:
        """Let attention cover this many places of each row, until the next call.

        `first_pages` has each row's first page, 0 for a row whose pages are not contiguous. If all
        rows are contiguous and equally far apart, attention reads them in place; else from a copy
        that is made for each token.
        """
        self.covered_tokens = self.pages_for(tokens) * self.page_tokens
        self._page_stride = None
        if not first_pages or not all(first_pages):
            return
        first = first_pages[0]
        last = first_pages[-1]
        distance = first_pages[1] - first if len(first_pages) > 1 else 1
        if distance <= 0:
            return
        evenly_spaced = list(range(first, last + 1, distance))
        if list(first_pages) != evenly_spaced:
            return
        # Covered places behind a row's own pages are masked, but they must be in the pool.
        if last * self.page_tokens + self.covered_tokens <= self.pool.shape[3]:
            self._page_stride = (first, distance)

    def set_row_cells(self, positions_n: Tensor, table_np: Tensor) -> Tensor:
        """Set the cell of one new token per row; return the mask of the places that each may see,
        [n, 1, 1, l].
        """
        place_n = positions_n // self.page_tokens
        page_n = table_np.gather(1, place_n[:, None]).squeeze(1)
        self._new_cells = page_n * self.page_tokens + positions_n % self.page_tokens
        self._pages_np = table_np[:, : self.covered_tokens // self.page_tokens]
        place_l = torch.arange(self.covered_tokens, device=self.pool.device)
        is_seen_nl = place_l <= positions_n[:, None]
        return is_seen_nl[:, None, None]

    def append(self, layer: int, keys_nkd: Tensor, values_nkd: Tensor) -> tuple[Tensor, Tensor]:
        """Write each row's new key and value; return all of the rows', [n, k, l, d]."""
        return self.update(keys_nkd[:, :, None], values_nkd[:, :, None], layer)

    # Prefill: new tokens of several streams, back to back in one row.

    def set_packed_cells(self, cells_q: Tensor, context_cells_l: Tensor | None) -> None:
        """Set the cells of new tokens, and of all tokens of their contexts; None if all tokens are
        new.
        """
        self._new_cells = cells_q
        self._context_cells_l = cells_q if context_cells_l is None else context_cells_l
        self._pages_np = None

    # Called by transformers' attention.

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new tokens' keys and values, [n, k, q, d]; return those of all tokens that may be
        seen, [n, k, l, d].
        """
        pool = self.pool[layer]
        n_heads = pool.shape[1]
        head_dim = pool.shape[3]
        keys = keys.to(pool.dtype)
        values = values.to(pool.dtype)
        for part, new in zip(pool, (keys, values), strict=True):
            # [k, n * q, d]: one of n and q is 1, so that this matches the cells one by one.
            by_head = new.transpose(0, 1).flatten(1, 2)
            part[:, self._new_cells] = by_head

        if self._pages_np is None:  # prefill
            if self._context_cells_l is self._new_cells:
                return keys, values
            both = pool.index_select(2, self._context_cells_l)[:, None]
        elif self._page_stride is not None:
            # A view of the pool in which rows may overlap: what a row covers beyond its own pages
            # is the next row's, and masked.
            page_size = self.page_tokens * head_dim
            first, distance = self._page_stride
            both = pool.as_strided(
                (2, len(keys), n_heads, self.covered_tokens, head_dim),
                (pool.stride(0), distance * page_size, pool.stride(1), pool.stride(2), 1),
                pool.storage_offset() + first * page_size,
            )
        else:
            by_page = pool.view(2, n_heads, -1, self.page_tokens * head_dim)
            chosen = by_page.index_select(2, self._pages_np.flatten())
            by_row = chosen.view(2, n_heads, len(keys), self.covered_tokens, -1)
            both = by_row.transpose(1, 2)
        return both[0], both[1]

    def get_seq_length(self, *_: Any) -> int:
        """Return 0: transformers asks for it, and does not use it with explicit positions."""
        return 0
