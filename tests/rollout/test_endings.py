"""Ends of turns: the automaton ends where a plain search of the text finds a stop text."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from uptrend.records import Ending
from uptrend.rollout.endings import ENDED, FIRST_STATE, Endings, text_table
from uptrend.rollout.sampler import Limits

TOKEN_TEXTS = ("", "a", "b", "ab", "aa", "ba", "c", "abc", "bca", "aab")


@settings(max_examples=300, deadline=None)
@given(
    stop_texts=st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=4),
    tokens=st.lists(st.integers(0, len(TOKEN_TEXTS) - 1), max_size=12),
)
def test_the_automaton_ends_where_a_search_finds_a_stop_text(
    stop_texts: list[str], tokens: list[int]
) -> None:
    table_kv = text_table(TOKEN_TEXTS, stop_texts)
    state = FIRST_STATE
    text = ""
    for token in tokens:
        state = int(table_kv[state, token])
        text += TOKEN_TEXTS[token]
        is_found = any(stop in text for stop in stop_texts)
        assert (state == ENDED) == is_found
        if is_found:
            break


@pytest.mark.parametrize(
    "stop", ["Observation:", "</answer>", "\n\n", " the end.", "é", "x = 10;", "<|im_end|>"]
)
def test_stop_texts_of_a_real_tokenizer_end_at_their_last_token(
    smollm2_folder: str, stop: str
) -> None:
    smollm2 = AutoTokenizer.from_pretrained(smollm2_folder)
    said = f"I look it up: {stop} and then more, {stop}"
    ids = np.array(smollm2(said, add_special_tokens=False).input_ids)
    endings = Endings(smollm2, (), len(smollm2) + 3, torch.device("cpu"))
    limits = Limits(len(ids), 99, stop=("never this", stop))

    count, ending = endings.find(ids, limits)
    assert ending == Ending.STOP_TEXT
    assert stop in smollm2.decode(ids[:count])
    assert stop not in smollm2.decode(ids[: count - 1])

    state = FIRST_STATE
    table_kv = endings.table(limits)
    n_decoded = 0
    while state != ENDED:
        state = int(table_kv[state, int(ids[n_decoded])])
        n_decoded += 1
    assert n_decoded == count
