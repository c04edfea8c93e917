"""Ends of turns: stop tokens, and stop texts of any number of tokens.

While turns are decoded, their text is not available: on a GPU the host does not even have the
tokens. So the search for stop texts runs on the device, as an automaton (Aho and Corasick 1975)
over the characters of tokens. Its table has the next state for each state and token; the turn ends
when that is `ENDED`. After the turn, its decoded text decides which tokens belong to it.

v = vocabulary, k = state of the automaton, c = character, m = sampled token of a turn.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from uptrend.records import Ending
from uptrend.rollout.sampler import Limits

# State of a turn that has ended, in an automaton's table.
ENDED = -1
# State before a turn's first token.
FIRST_STATE = 0
# Tokens of one turn are decoded behind this text: a token's own text may depend on being the first,
# as tokenizers that mark words by a leading space drop it there.
PRECEDING_TEXT = "a"


class Endings:
    """Finds the end of a turn, while it is decoded and afterwards."""

    def __init__(
        self, tokenizer: Any, stop_ids: tuple[int, ...], vocabulary: int, device: torch.device
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_ids = set(stop_ids)
        self._vocabulary = vocabulary
        self._device = device
        self._token_texts: list[str] | None = None
        # By stop texts: the table for the host, and the one for the device.
        self._tables: dict[tuple[str, ...], tuple[NDArray[np.int32], Tensor]] = {}

    def table(self, limits: Limits) -> Tensor:
        """Return the automaton that ends turns: the next state, [k, v].

        It knows a stop text by the texts of single tokens. A character whose bytes lie in two
        tokens, for example, has none of them; only `find` notices it.
        """
        return self._tables_of(limits.stop)[1]

    def find(self, ids_m: NDArray[np.int64], limits: Limits) -> tuple[int, Ending]:
        """Return the number of sampled tokens that belong to the turn, and what ended it."""
        count = len(ids_m)
        # Nothing is sampled after a stop token, so it can only be the last one.
        has_stop_token = count > 0 and int(ids_m[-1]) in self._stop_ids
        stop_count = self._count_until_stop_text(ids_m, limits) if limits.stop else None
        # If both end at the same token, the stop token counts.
        if stop_count is not None and (stop_count < count or not has_stop_token):
            return stop_count, Ending.STOP_TEXT
        if has_stop_token:
            return count, Ending.STOP_TOKEN
        if count == limits.max_tokens:
            return count, Ending.LENGTH
        return count, Ending.CONTEXT_FULL

    def _count_until_stop_text(self, ids_m: NDArray[np.int64], limits: Limits) -> int | None:
        """Return the fewest tokens that have a stop text, None if all of them have none."""
        table_kv, _ = self._tables_of(limits.stop)
        state = FIRST_STATE
        count = None
        for n, token in enumerate(ids_m.tolist(), 1):
            state = int(table_kv[state, token])
            if state == ENDED:
                # The automaton ends at stop tokens too, which no stop text need be in.
                if token not in self._stop_ids or self._has_stop_text(ids_m[:n], limits):
                    count = n
                break

        # Within a text, tokens may read differently than by themselves.
        n_unread = len(ids_m) if count is None else count - 1
        if self._has_stop_text(ids_m[:n_unread], limits):
            # By bisection: a text that has a stop text keeps it when tokens are added.
            counts = range(1, n_unread + 1)
            index = bisect_left(counts, True, key=lambda n: self._has_stop_text(ids_m[:n], limits))
            count = counts[index]
        return count

    def _has_stop_text(self, ids_m: NDArray[np.int64], limits: Limits) -> bool:
        text = self._tokenizer.decode(ids_m)
        return any(stop in text for stop in limits.stop)

    def _tables_of(self, stop_texts: tuple[str, ...]) -> tuple[NDArray[np.int32], Tensor]:
        if stop_texts not in self._tables:
            table_kv = np.zeros((1, self._vocabulary), np.int32)
            if stop_texts:
                table_kv = text_table(self._texts(), stop_texts)
            # A model's head may be wider than its tokenizer, and a tokenizer may have more tokens.
            table_kv[:, [i for i in self._stop_ids if i < self._vocabulary]] = ENDED
            self._tables[stop_texts] = (table_kv, torch.from_numpy(table_kv).to(self._device))
        return self._tables[stop_texts]

    def _texts(self) -> list[str]:
        """Return the text that each token of the vocabulary adds to a text."""
        if self._token_texts is None:
            preceding = self._tokenizer(PRECEDING_TEXT, add_special_tokens=False).input_ids
            start = self._tokenizer.decode(preceding)
            n_known = min(self._vocabulary, len(self._tokenizer))
            whole_texts = self._tokenizer.batch_decode([[*preceding, i] for i in range(n_known)])
            texts = [text[len(start) :] for text in whole_texts]
            self._token_texts = texts + [""] * (self._vocabulary - n_known)
        return self._token_texts


def text_table(token_texts: Sequence[str], stop_texts: Sequence[str]) -> NDArray[np.int32]:
    """Return an automaton's table: the state after a token, `ENDED` once a stop text is complete.

    A state stands for the longest end of the text so far with which a stop text begins.
    """
    characters = sorted(set("".join(stop_texts)))
    next_kc = character_table(stop_texts, characters)
    n_states = len(next_kc) - 1  # the last row is that of `ENDED`

    # Tokens without any character of the stop texts lead to the first state, those without a text
    # to the same state.
    table_kv = np.full((n_states, len(token_texts)), FIRST_STATE, np.int32)
    column_of = {character: c for c, character in enumerate(characters)}
    tokens: list[int] = []
    for token, text in enumerate(token_texts):
        if not text:
            table_kv[:, token] = np.arange(n_states)
        elif not column_of.keys().isdisjoint(text):
            tokens.append(token)

    # The others lead through the automaton by character. All do so at once, the longest first.
    tokens.sort(key=lambda token: len(token_texts[token]), reverse=True)
    other_column = len(characters)
    columns_by_token: list[list[int]] = []
    for token in tokens:
        columns = [column_of.get(character, other_column) for character in token_texts[token]]
        columns_by_token.append(columns)
    lengths = np.array([len(columns) for columns in columns_by_token])
    states_nk = np.tile(np.arange(n_states), (len(tokens), 1))
    for place in range(max(lengths, default=0)):
        n_longer = int((lengths > place).sum())
        column_n = np.array([columns[place] for columns in columns_by_token[:n_longer]])
        states_nk[:n_longer] = next_kc[states_nk[:n_longer], column_n[:, None]]
    table_kv[:, tokens] = states_nk.T
    return table_kv


def character_table(stop_texts: Sequence[str], characters: Sequence[str]) -> NDArray[np.int32]:
    """Return the next state for each state and character, the last column for all other characters.

    The last row belongs to `ENDED`, which no character leaves.
    """
    # A tree of the stop texts' beginnings; a node's number is its state.
    children: list[dict[str, int]] = [{}]
    complete: set[int] = set()
    for text in stop_texts:
        node = FIRST_STATE
        for character in text:
            if character not in children[node]:
                children[node][character] = len(children)
                children.append({})
            node = children[node][character]
        complete.add(node)

    # Breadth first: if a character leads to no child, the state of the longest shorter end decides.
    n_states = len(children)
    next_kc = np.full((n_states + 1, len(characters) + 1), FIRST_STATE, np.int32)
    shorter_end = [FIRST_STATE] * n_states
    nodes = deque([FIRST_STATE])
    while nodes:
        node = nodes.popleft()
        if shorter_end[node] in complete:
            complete.add(node)
        for c, character in enumerate(characters):
            child = children[node].get(character)
            fallback = int(next_kc[shorter_end[node], c]) if node != FIRST_STATE else FIRST_STATE
            if child is None:
                next_kc[node, c] = fallback
            else:
                next_kc[node, c] = child
                shorter_end[child] = fallback
                nodes.append(child)

    next_kc[np.isin(next_kc, sorted(complete))] = ENDED
    next_kc[ENDED] = ENDED
    return next_kc
