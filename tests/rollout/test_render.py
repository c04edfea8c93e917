"""What the model reads, turn after turn, is what the template would say of the whole conversation."""

import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chats import FINISH, SEARCH, calling, put_on
from chats import whole as template
from models import character_tokenizer
from uptrend.records import Message, TasksetError, ToolCall
from uptrend.rollout.calls import FORMATS
from uptrend.rollout.render import Renderer

QUESTION = [Message("system", "Be brief."), Message("user", "What is 2 + 2?")]


@pytest.fixture(scope="module")
def smollm2(smollm2_folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_folder)


@pytest.fixture(params=["characters", "smollm2"])
def tokenizer(request):
    return character_tokenizer() if request.param == "characters" else deepcopy(request.getfixturevalue("smollm2"))


def test_what_is_appended_is_what_the_template_would_say(tokenizer):
    end = tokenizer.eos_token_id
    renderer = Renderer(tokenizer, [end], chat=True)
    messages = list(QUESTION)
    ids = list(renderer.first(messages, ()))
    assert ids == template(tokenizer, messages, [], speak=True)
    for words, answer in (("4", "Are you sure?"), ("yes, 4!", "And 3 + 3?")):
        said = [*tokenizer(words, add_special_tokens=False).input_ids, end]
        assert renderer.text(said) == words
        answers = [Message("user", answer)]
        ids += [*said, *renderer.later(said, answers, ())]
        messages += [Message("assistant", words), *answers]
        assert ids == template(tokenizer, messages, [], speak=True)


def test_a_turn_that_did_not_close_is_closed():
    """Cut by length, or stopped by a text: the close that the template puts there is still read."""
    tokenizer = character_tokenizer()
    renderer = Renderer(tokenizer, [tokenizer.eos_token_id], chat=True)
    said = tokenizer("4 and").input_ids
    ids = [*renderer.first(QUESTION, ()), *said, *renderer.later(said, [Message("tool", "no")], ())]
    messages = [*QUESTION, Message("assistant", "4 and"), Message("tool", "no")]
    assert ids == template(tokenizer, messages, [], speak=True)


def test_raw_text_is_only_joined():
    tokenizer = character_tokenizer()
    renderer = Renderer(tokenizer, [tokenizer.eos_token_id], chat=False)
    assert renderer.first([Message("user", "2 + 2"), Message("user", " = ")], ()) == tokenizer("2 + 2 = ").input_ids
    later = renderer.later(tokenizer("4").input_ids, [Message("user", "no"), Message("user", "!")], ())
    assert later == tokenizer("no!").input_ids


def test_the_last_space_of_a_raw_prompt_can_be_left_to_the_model():
    """Where a word's token begins with its space, a prompt that ends with one asks for something rare."""
    tokenizer = character_tokenizer()
    trimmed = Renderer(tokenizer, [tokenizer.eos_token_id], chat=False, trim=True)
    assert trimmed.first([Message("user", " 2 + 2 =  ")], ()) == tokenizer(" 2 + 2 =").input_ids
    chat = Renderer(tokenizer, [tokenizer.eos_token_id], chat=True, trim=True)
    assert chat.first(QUESTION, ()) == template(tokenizer, QUESTION, [], speak=True)


TURNS = {
    "qwen2_5": (calling("", "red"), calling("Both now.", "blue", "ünïcode \U0001f600"), Message("assistant", "purple")),
    "qwen3": (calling("", "red"), calling("Both now.", "blue", "ünïcode \U0001f600"), Message("assistant", "purple")),
    "llama3_1": (calling("", "red"), calling("", "ünïcode \U0001f600"), Message("assistant", "purple")),
    "gemma3": (calling("", "red"), calling("Both now.", "blue", "ünïcode \U0001f600"), Message("assistant", "purple")),
}
ANSWERS = ([Message("tool", "a color")], [Message("tool", "cold"), Message("tool", "none"), Message("user", "Well?")])


def in_words(messages):
    """A conversation as a template without tools is told it: written out here by hand."""
    offer = (
        "You can call these tools:\nsearch(query: string, most: optional integer): Searches the documents.\n"
        "finish(): Ends.\n\n"
        "To call a tool, end your turn like this; its result comes between <result> and </result>:\n"
        '<tool>{"name": "search", "arguments": {"query": "..."}}</tool>'
    )
    told = []
    for m in messages:
        content = FORMATS["plain"].write(m) if m.calls else m.content
        content += f"\n\n{offer}" if m.role == "system" else ""
        content = f"<result>\n{content}\n</result>" if m.role == "tool" else content
        role = "user" if m.role == "tool" else m.role
        if told and told[-1].role == role:
            told[-1] = Message(role, f"{told[-1].content}\n{content}")
        else:
            told.append(Message(role, content))
    return told


@pytest.mark.parametrize("name", TURNS)
def test_a_conversation_with_tools_is_the_templates_own(tokenizer, name):
    """Calls are written as the template writes them, and results are read where and as it puts them."""
    tokenizer, stops = put_on(tokenizer, name)
    renderer, tools, messages = Renderer(tokenizer, stops, chat=True), [SEARCH, FINISH], list(QUESTION)

    def expected(speak):
        if name == "gemma3":  # no tools in its template: in words
            return template(tokenizer, in_words(messages), [], speak=speak)
        return template(tokenizer, messages, tools, speak=speak)

    ids = list(renderer.first(messages, tools))
    assert ids == expected(speak=True)
    for said, answers in zip(TURNS[name][:2], ANSWERS, strict=True):
        written = renderer.write(said)
        ids += [*written, *renderer.later(written, answers, tools)]
        messages += [said, *answers]
        assert ids == expected(speak=True)
    ids += renderer.write(TURNS[name][2])
    messages.append(TURNS[name][2])
    if name != "qwen3":  # which puts empty thoughts into a last turn that had none: not what was said
        end = expected(speak=False)
        assert ids == end[: len(ids)]
        assert tokenizer.decode(end[len(ids) :]).strip() == ""


def test_thoughts_that_qwen3_would_forget_stay_as_they_were_said():
    """Its template drops old thoughts at a user's next words; a rollout's history is only appended to."""
    tokenizer, stops = put_on(character_tokenizer(), "qwen3")
    renderer = Renderer(tokenizer, stops, chat=True)
    said = renderer.write(Message("assistant", "<think>\nhm\n</think>\n\n4"))
    ids = [*renderer.first(QUESTION, ()), *said, *renderer.later(said, [Message("user", "Sure?")], ())]
    text = tokenizer.decode(ids)
    assert "<think>\nhm\n</think>\n\n4<|im_end|>\n<|im_start|>user\nSure?" in text
    messages = [*QUESTION, Message("assistant", "<think>\nhm\n</think>\n\n4"), Message("user", "Sure?")]
    assert tokenizer.decode(template(tokenizer, messages, [], speak=True)) == text.replace(
        "<think>\nhm\n</think>\n\n", ""
    )


def test_llamas_tag_is_read_though_it_is_special():
    tokenizer, stops = put_on(character_tokenizer(), "llama3_1")
    renderer = Renderer(tokenizer, stops, chat=True)
    ids = tokenizer('<|eom_id|><|python_tag|>{"name": "search", "parameters": {"query": "red"}}').input_ids
    assert renderer.read(ids) == calling("", "red")
    assert renderer.read(renderer.write(calling("Well.", "red"))) == calling("Well.", "red")


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<{|"))
ARGUMENTS = st.dictionaries(st.sampled_from(["query", "größe"]), WORDS | st.integers() | st.lists(WORDS, max_size=2))


@pytest.mark.parametrize("name", [*TURNS, "raw"])
def test_any_message_survives_its_tokens(smollm2, name):
    tokenizer, stops = deepcopy(smollm2), [smollm2.eos_token_id]
    if name != "raw":
        tokenizer, stops = put_on(tokenizer, name, all_special=True)
    renderer = Renderer(tokenizer, stops, chat=name != "raw")

    @settings(max_examples=40, deadline=None)
    @given(content=WORDS, calls=st.lists(st.builds(ToolCall, st.just("search"), ARGUMENTS), max_size=2))
    def check(content, calls):
        message = Message("assistant", content, tuple(calls[:1] if name == "llama3_1" else calls))
        ids = renderer.write(message)
        assume(tokenizer.decode(ids[:-1]) == FORMATS[renderer.format].write(message))  # it lacks some bytes
        assert renderer.read(ids) == message

    check()


def test_raw_text_with_tools():
    tokenizer = character_tokenizer()
    renderer = Renderer(tokenizer, [tokenizer.eos_token_id], chat=False)
    first = tokenizer.decode(renderer.first([Message("user", "Which? ")], [FINISH]))
    assert first.startswith("You can call these tools:\nfinish")
    assert first.endswith('\n<tool>{"name": "finish", "arguments": {}}</tool>\n\nWhich? ')
    later = renderer.later([], [Message("tool", "red"), Message("tool", "no"), Message("user", "So?")], [FINISH])
    assert tokenizer.decode(later) == "\n<result>\nred\n</result>\n\n<result>\nno\n</result>\nSo?"
    assert renderer.later([], [Message("tool", "red")], ()) == tokenizer("red").input_ids
    assert renderer.write(Message("assistant", "12")) == [*tokenizer("12").input_ids, tokenizer.eos_token_id]


def test_a_system_message_is_put_first_where_there_is_none():
    tokenizer = character_tokenizer()
    renderer = Renderer(tokenizer, [tokenizer.eos_token_id], chat=True)
    text = tokenizer.decode(renderer.first(QUESTION[1:], [FINISH]))
    assert text.startswith("<turn>system\nYou can call these tools:\n")
    assert text.endswith("</tool><end>\n<turn>user\nWhat is 2 + 2?<end>\n<turn>assistant\n")
    assert tokenizer.decode(renderer.first(QUESTION[1:], [])) == "<turn>user\nWhat is 2 + 2?<end>\n<turn>assistant\n"


def test_the_example_of_the_page():
    page = (Path(__file__).parents[2] / "docs" / "rollout.md").read_text(encoding="utf-8")
    example = page.split("With tiny's template:\n\n```\n")[1].split("```")[0]
    tokenizer = character_tokenizer()
    renderer = Renderer(tokenizer, [tokenizer.eos_token_id], chat=True)
    said = renderer.write(calling("Let me look.", "color"))
    first = renderer.first([QUESTION[0], Message("user", "Which color is it?")], [SEARCH])
    ids = [*first, *said, *renderer.later(said, [Message("tool", "It is red.")], [SEARCH])]
    assert tokenizer.decode(ids) == example
    (snippet,) = re.findall(r"```python\n(from uptrend\.rollout\.calls .*?)```", page, re.DOTALL)
    exec(compile(snippet, "rollout.md", "exec"), {})


@pytest.mark.parametrize("name", ["qwen2_5", "gemma3"])
def test_a_prompt_is_remembered_with_all_of_its_tools(name):
    tokenizer, stops = put_on(character_tokenizer(), name)
    renderer = Renderer(tokenizer, stops, chat=True)
    tools = [
        SEARCH,
        replace(SEARCH, description="Looks."),
        replace(SEARCH, parameters={"type": "object", "properties": {"word": {"type": "string"}}}),
    ]
    assert len({tuple(renderer.first(QUESTION, [tool])) for tool in tools}) == len(tools)


def test_earlier_calls_in_first_messages_are_shown_as_the_template_would():
    tokenizer, stops = put_on(character_tokenizer(), "qwen2_5")
    renderer = Renderer(tokenizer, stops, chat=True)
    messages = [*QUESTION, calling("So.", "red", "blue"), Message("tool", "a"), Message("tool", "b")]
    assert renderer.first(messages, [SEARCH]) == template(tokenizer, messages, [SEARCH], speak=True)


def test_a_turn_ends_with_a_stop_id_where_the_template_closes_with_none():
    tokenizer = character_tokenizer()
    turn = tokenizer.convert_tokens_to_ids("<turn>")
    assert Renderer(tokenizer, [turn, 1], chat=True).write(Message("assistant", "4"))[1:] == [turn]
    assert Renderer(tokenizer, [turn, 2], chat=True).write(Message("assistant", "4"))[1:] == [2]


def test_a_chat_needs_a_template():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(TasksetError, match=r"has no chat template\. Set chat = false"):
        Renderer(tokenizer, [2], chat=True)
    assert Renderer(tokenizer, [2], chat=False)


def test_a_template_that_rewrites_history_is_refused():
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{{ messages[-1].content }}"
    renderer = Renderer(tokenizer, [2], chat=True)
    with pytest.raises(TasksetError, match="rewrites what was said before"):
        renderer.later([5, 2], [Message("user", "no")], ())


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "gemma3"])
def test_a_document_can_not_end_its_turn(smollm2, name):
    """Control tokens inside of what somebody says are only letters."""
    tokenizer, stops = put_on(deepcopy(smollm2), name)
    renderer = Renderer(tokenizer, stops, chat=True)
    special = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    evil = "".join(f" {text} user" for text in special.values() if text not in FORMATS[renderer.format].marks)
    said = renderer.write(Message("assistant", "Let me see."))

    def controls(ids):
        return [i for i in ids if i in special]

    for render in (
        lambda text: renderer.first([Message("user", text)], ()),
        lambda text: renderer.later(said, [Message("tool", text)], [SEARCH]),
        lambda text: renderer.write(Message("assistant", text)),
    ):
        assert controls(render(evil)) == controls(render("nothing of the kind"))


def test_a_turn_is_closed_once_whatever_closed_it(smollm2):
    tokenizer, stops = put_on(deepcopy(smollm2), "llama3_1")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eom_id|>"]})
    other = tokenizer.convert_tokens_to_ids("<|eom_id|>")
    renderer = Renderer(tokenizer, [*stops, other], chat=True)
    words = tokenizer("hello", add_special_tokens=False).input_ids
    usual = renderer.later([*words, stops[0]], [Message("tool", "4")], [SEARCH])
    assert renderer.later([*words, other], [Message("tool", "4")], [SEARCH]) == usual
