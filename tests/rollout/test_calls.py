"""Calls are read as they were written, and what can't be read is named."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chats import SPECIAL, put_on
from models import character_tokenizer
from uptrend.records import Message, TasksetError, ToolCall
from uptrend.rollout.calls import CALL_FORMATS, format_of, read_turn

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
MARKUP = st.sampled_from(
    ["</tool>", "<tool>", "</tool_call>", "<tool_call>", "<|python_tag|>", "{", "}", '"', "\\"]
)
ARGUMENTS = st.dictionaries(st.text() | MARKUP, VALUES | MARKUP, max_size=3)
CALLS = st.builds(ToolCall, st.text(min_size=1), ARGUMENTS)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<{")) | st.sampled_from(
    ["\n", "a\n", " \n\n", " b "]
)
"""What may stand beside calls: no markup."""

RIGHT = {
    "plain": '<tool>{"name": "search", "arguments": {"query": "x"}}</tool>',
    "qwen": '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>',
    "llama": '{"name": "search", "parameters": {"query": "x"}}',
}
SEARCH = ToolCall("search", {"query": "x"})


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(list(CALL_FORMATS)), content=WORDS, calls=st.lists(CALLS, max_size=3))
def test_what_was_written_is_read(name: str, content: str, calls: list[ToolCall]) -> None:
    message = Message("assistant", content, tuple(calls[:1] if name == "llama" else calls))
    assert CALL_FORMATS[name].read(CALL_FORMATS[name].write(message)) == message


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(list(CALL_FORMATS)),
    parts=st.lists(
        MARKUP
        | st.text(max_size=5)
        | st.sampled_from([*RIGHT.values(), '{"name":', "NaN", "[" * 2000])
    ),
)
def test_any_text_is_read_and_what_has_a_problem_is_kept(name: str, parts: list[str]) -> None:
    text = "".join(parts)
    message = CALL_FORMATS[name].read(text)
    if message.problem:
        assert (message.content, message.calls) == (text, ())
        assert CALL_FORMATS[name].read(CALL_FORMATS[name].write(message)) == message
    elif not message.calls:
        assert message.content == text
    for call in message.calls:
        json.dumps(dict(call.arguments), allow_nan=False).encode()


@pytest.mark.parametrize("name", CALL_FORMATS)
def test_the_text_of_a_call(name: str) -> None:
    assert CALL_FORMATS[name].write(Message("assistant", "", (SEARCH,))) == RIGHT[name]
    assert CALL_FORMATS[name].read(f" {RIGHT[name]}\n").calls == (SEARCH,)


@pytest.mark.parametrize("name", ["plain", "qwen"])
def test_words_before_between_and_after_calls(name: str) -> None:
    message = CALL_FORMATS[name].read(f"First.\n{RIGHT[name]} then {RIGHT[name]} done")
    assert message == Message("assistant", "First. then  done", (SEARCH, SEARCH))
    spoiled = RIGHT[name] + _tagged(name, "{}")  # one bad call spoils the turn
    assert (CALL_FORMATS[name].read(spoiled).calls, CALL_FORMATS[name].read(spoiled).content) == (
        (),
        spoiled,
    )


@pytest.mark.parametrize("name", CALL_FORMATS)
@pytest.mark.parametrize(
    ("value", "call"),
    [
        ({"name": "search", "parameters": {"query": "x"}}, SEARCH),
        ({"name": "search", "arguments": '{"query": "x"}'}, SEARCH),
        ({"arguments": {"query": "x"}, "name": "search", "id": 3}, SEARCH),
        ({"name": "finish"}, ToolCall("finish", {})),
    ],
)
def test_liberties_that_models_take(name: str, value: dict[str, Any], call: ToolCall) -> None:
    assert CALL_FORMATS[name].read(_tagged(name, json.dumps(value, indent=1))).calls == (call,)


@pytest.mark.parametrize("name", CALL_FORMATS)
@pytest.mark.parametrize(
    ("inside", "wrong"),
    [
        (
            '{"name": "search", "arguments": {"query": }}',
            "is not JSON: Expecting value at its character 43",
        ),
        (
            '{"name": "search" "arguments": {}}',
            "is not JSON: Expecting ',' delimiter at its character 19",
        ),
        ('{"arguments": {}}', "has no name"),
        ('{"name": 3, "arguments": {}}', "has no name"),
        ('{"name": "search", "arguments": ["x"]}', "arguments are not a JSON object"),
        ('{"name": "search", "arguments": "x"}', "arguments are not a JSON object"),
        ('{"name": "search", "arguments": "{} {}"}', "arguments are not a JSON object"),
        ('{"name": "search", "arguments": {"n": 1e999}}', "can't be written down"),
        ('{"name": "search", "arguments": {"n": NaN}}', "can't be written down"),
        ('{"name": "search", "arguments": {"query": "\\ud800"}}', "can't be written down"),
        (
            '{"name": "search", "arguments": ' + "[" * 9000 + "]" * 9000 + "}",
            "can't be written down",
        ),
        ('{"name": "search"} more', "More text follows|More than a JSON object"),
    ],
)
def test_what_is_wrong_is_said(name: str, inside: str, wrong: str) -> None:
    text = "So. " * (name != "llama") + _tagged(name, inside)
    message = CALL_FORMATS[name].read(text)
    assert (message.content, message.calls) == (text, ())
    assert re.search(wrong, message.problem), message.problem
    assert message.problem.endswith(_tagged(name, f'{{"name": "...", "{_word(name)}": {{...}}}}'))


@pytest.mark.parametrize("name", ["plain", "qwen"])
@pytest.mark.parametrize("query", ["x", "CLOSE"])
def test_a_call_that_is_not_closed(name: str, query: str) -> None:
    opening, closing = CALL_FORMATS[name].marks
    text = RIGHT[name].replace(closing, "").replace("x", query.replace("CLOSE", closing))
    assert (
        CALL_FORMATS[name]
        .read(text)
        .problem.startswith(f"A call begins with {opening}, but {closing} is missing; ")
    )
    assert CALL_FORMATS[name].read("a" + opening).problem


@pytest.mark.parametrize("name", CALL_FORMATS)
def test_a_call_in_thoughts_is_not_made(name: str) -> None:
    thought = f"<think>Should I say {''.join(CALL_FORMATS[name].marks[:1])}{RIGHT[name]}?</think>"
    assert read_turn(CALL_FORMATS[name], thought) == Message("assistant", thought)
    assert read_turn(CALL_FORMATS[name], f"{thought}\n{RIGHT[name]}") == Message(
        "assistant", thought, (SEARCH,)
    )
    never_closed = f"<think>\n{RIGHT[name]}"
    assert read_turn(CALL_FORMATS[name], never_closed) == Message("assistant", never_closed)


@pytest.mark.parametrize("name", CALL_FORMATS)
@pytest.mark.parametrize("text", ["", " ", "12", "tool", "< tool>", "I would use {x}."])
def test_text_without_a_call(name: str, text: str) -> None:
    assert CALL_FORMATS[name].read(text) == Message("assistant", text)


@pytest.mark.parametrize("between", ["; ", ";", "\n", "", "\n\n;"])
def test_several_calls_of_llama_are_read_and_not_written(between: str) -> None:
    message = CALL_FORMATS["llama"].read(between.join([RIGHT["llama"]] * 3))
    assert message == Message("assistant", "", (SEARCH,) * 3)
    with pytest.raises(TasksetError, match=r"makes 3 tool calls.*holds one call a turn"):
        CALL_FORMATS["llama"].write(message)


def test_llamas_tag() -> None:
    read = CALL_FORMATS["llama"].read
    assert read(f"<|python_tag|>{RIGHT['llama']}") == Message("assistant", "", (SEARCH,))
    assert read(f"Well.<|python_tag|>{RIGHT['llama']}") == Message("assistant", "Well.", (SEARCH,))
    assert "not JSON" in read('<|python_tag|>brave_search.call(query="x")').problem
    assert "not JSON" in read("<|python_tag|>").problem


OFFER = "{% if tools %}{{ tools }}{% endif %}"
MESSAGES = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("qwen2_5", "qwen"),
        ("qwen3", "qwen"),
        ("llama3_1", "llama"),
        ("gemma3", "plain"),
        (MESSAGES, "plain"),
        ("{{ messages }} <tool_call> ipython", "plain"),
        (
            MESSAGES + "{% if tools %}{{ raise_exception('no tools') }}{% endif %}<tool_call>",
            "plain",
        ),
        (OFFER + MESSAGES, "plain"),
        (OFFER + MESSAGES + "<tool_call>", "qwen"),
        (OFFER + MESSAGES + "{# ipython #}", "llama"),
        # As Qwen3-Coder writes its calls.
        (
            OFFER
            + "{% for m in messages %}{% for c in m.tool_calls %}<tool_call>\n<function={{ c.function.name }}>"
            "{% endfor %}{% endfor %}",
            "plain",
        ),
    ],
)
def test_the_format_of_a_template(template: str, name: str) -> None:
    tokenizer = character_tokenizer()
    if template in SPECIAL:
        put_on(tokenizer, template)
    else:
        tokenizer.chat_template = template
    assert format_of(tokenizer) == name


def _word(name: str) -> str:
    return "parameters" if name == "llama" else "arguments"


def _tagged(name: str, inside: str) -> str:
    return inside if name == "llama" else inside.join(CALL_FORMATS[name].marks)
