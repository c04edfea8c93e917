"""What the model reads, turn after turn, is what the template would say of the whole
conversation.
"""

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chats import FINISH, SEARCH, calling, in_words, put_on
from chats import whole as template
from models import character_tokenizer
from uptrend.records import Message, TasksetError, ToolCall
from uptrend.rollout.calls import CALL_FORMATS
from uptrend.rollout.render import Renderer

QUESTION = [Message("system", "Be brief."), Message("user", "What is 2 + 2?")]


@pytest.fixture(scope="module")
def smollm2(smollm2_folder):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2_folder)


@pytest.fixture(params=["characters", "smollm2"])
def tokenizer(request):
    return (
        character_tokenizer()
        if request.param == "characters"
        else deepcopy(request.getfixturevalue("smollm2"))
    )


@pytest.fixture
def characters():
    return character_tokenizer()


def make(tokenizer, name="", **options):
    """Make a renderer of chats, with a model's template on the tokenizer or its own."""
    stops = put_on(tokenizer, name)[1] if name else [tokenizer.eos_token_id]
    return Renderer(tokenizer, stops, **{"chat": True, **options})


def test_what_is_appended_is_what_the_template_would_say(tokenizer):
    renderer, messages = make(tokenizer), list(QUESTION)
    ids = list(renderer.first_prompt(messages, ()))
    assert ids == template(tokenizer, messages, [], speak=True)
    # A turn that did not close, cut by length or stopped by a text, is closed as the template does.
    for words, answer, end in (
        ("4", "Are you sure?", True),
        ("yes, 4!", "And 3 + 3?", True),
        ("6 and", "No.", False),
    ):
        said = tokenizer(words, add_special_tokens=False).input_ids + [tokenizer.eos_token_id] * end
        assert renderer.text(said) == words
        answers = [Message("user", answer)]
        ids += [*said, *renderer.next_prompt(said, answers, ())]
        messages += [Message("assistant", words), *answers]
        assert ids == template(tokenizer, messages, [], speak=True)


def test_raw_text_is_only_joined(characters):
    renderer = make(characters, chat=False)
    assert (
        renderer.first_prompt([Message("user", "2 + 2"), Message("user", " = ")], ())
        == characters("2 + 2 = ").input_ids
    )
    later = renderer.next_prompt(
        characters("4").input_ids, [Message("user", "no"), Message("user", "!")], ()
    )
    assert later == characters("no!").input_ids


def test_the_last_space_of_a_raw_prompt_can_be_left_to_the_model(characters):
    """Where a word's token begins with its space, a prompt that ends with one asks for something
    rare.
    """
    first = make(characters, chat=False, trim=True).first_prompt(
        [Message("user", " 2 + 2 =  ")], ()
    )
    assert first == characters(" 2 + 2 =").input_ids
    assert make(characters, trim=True).first_prompt(QUESTION, ()) == template(
        characters, QUESTION, [], speak=True
    )


TURNS = (calling("", "red"), calling("Both now.", "blue", "ünïcode \U0001f600"))
ONE_CALL = (
    calling("", "red"),
    calling("", "ünïcode \U0001f600"),
)  # as many as Llama's format holds
PURPLE = Message("assistant", "purple")
TEMPLATES = ("qwen2_5", "qwen3", "llama3_1", "gemma3")
ANSWERS = (
    [Message("tool", "a color")],
    [Message("tool", "cold"), Message("tool", "none"), Message("user", "Well?")],
)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_with_tools_is_the_templates_own(tokenizer, name):
    """Calls are written as the template writes them, and results are read where and as it puts
    them.
    """
    renderer, tools, messages = make(tokenizer, name), [SEARCH, FINISH], list(QUESTION)

    def expected(speak):
        if name == "gemma3":  # no tools in its template: in words
            return template(tokenizer, in_words(messages), [], speak=speak)
        return template(tokenizer, messages, tools, speak=speak)

    ids = list(renderer.first_prompt(messages, tools))
    assert ids == expected(speak=True)
    for said, answers in zip(ONE_CALL if name == "llama3_1" else TURNS, ANSWERS, strict=True):
        written = renderer.write(said)
        ids += [*written, *renderer.next_prompt(written, answers, tools)]
        messages += [said, *answers]
        assert ids == expected(speak=True)
    ids += renderer.write(PURPLE)
    messages.append(PURPLE)
    if (
        name != "qwen3"
    ):  # which puts empty thoughts into a last turn that had none: not what was said
        end = expected(speak=False)
        assert ids == end[: len(ids)]
        assert tokenizer.decode(end[len(ids) :]).strip() == ""


def test_thoughts_that_qwen3_would_forget_stay_as_they_were_said(characters):
    """Its template drops old thoughts at a user's next words; a rollout's history is only appended
    to.
    """
    renderer, thought, sure = (
        make(characters, "qwen3"),
        "<think>\nhm\n</think>\n\n",
        Message("user", "Sure?"),
    )
    spoken = Message("assistant", f"{thought}4")
    said = renderer.write(spoken)
    text = characters.decode(
        [*renderer.first_prompt(QUESTION, ()), *said, *renderer.next_prompt(said, [sure], ())]
    )
    assert f"{thought}4<|im_end|>\n<|im_start|>user\nSure?" in text
    forgotten = template(characters, [*QUESTION, spoken, sure], [], speak=True)
    assert characters.decode(forgotten) == text.replace(thought, "")


def test_llamas_tag_is_read_though_it_is_special(characters):
    renderer = make(characters, "llama3_1")
    ids = characters(
        '<|eom_id|><|python_tag|>{"name": "search", "parameters": {"query": "red"}}'
    ).input_ids
    assert renderer.read(ids) == calling("", "red")
    assert renderer.read(renderer.write(calling("Well.", "red"))) == calling("Well.", "red")


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="<{|"))
ARGUMENTS = st.dictionaries(
    st.sampled_from(["query", "größe"]), WORDS | st.integers() | st.lists(WORDS, max_size=2)
)


@pytest.mark.parametrize("name", [*TEMPLATES, "raw"])
def test_any_message_survives_its_tokens(smollm2, name):
    tokenizer, stops = deepcopy(smollm2), [smollm2.eos_token_id]
    if name != "raw":
        tokenizer, stops = put_on(tokenizer, name, all_special=True)
    renderer = Renderer(tokenizer, stops, chat=name != "raw")

    @settings(max_examples=40, deadline=None)
    @given(
        content=WORDS, calls=st.lists(st.builds(ToolCall, st.just("search"), ARGUMENTS), max_size=2)
    )
    def check(content, calls):
        message = Message("assistant", content, tuple(calls[:1] if name == "llama3_1" else calls))
        ids = renderer.write(message)
        assume(
            tokenizer.decode(ids[:-1]) == CALL_FORMATS[renderer.format].write(message)
        )  # it lacks some bytes
        assert renderer.read(ids) == message

    check()


def test_raw_text_with_tools(characters):
    renderer = make(characters, chat=False)
    first = characters.decode(renderer.first_prompt([Message("user", "Which? ")], [FINISH]))
    assert first.startswith("You can call these tools:\nfinish")
    assert first.endswith('\n<tool>{"name": "finish", "arguments": {}}</tool>\n\nWhich? ')
    later = renderer.next_prompt(
        [], [Message("tool", "red"), Message("tool", "no"), Message("user", "So?")], [FINISH]
    )
    assert characters.decode(later) == "\n<result>\nred\n</result>\n\n<result>\nno\n</result>\nSo?"
    assert renderer.next_prompt([], [Message("tool", "red")], ()) == characters("red").input_ids
    assert renderer.write(Message("assistant", "12")) == [
        *characters("12").input_ids,
        characters.eos_token_id,
    ]


def test_a_system_message_is_put_first_where_there_is_none(characters):
    with_tools, without = (
        characters.decode(make(characters).first_prompt(QUESTION[1:], t)) for t in ([FINISH], [])
    )
    assert with_tools.startswith("<turn>system\nYou can call these tools:\n")
    assert with_tools.endswith(f"</tool><end>\n{without}")
    assert without == "<turn>user\nWhat is 2 + 2?<end>\n<turn>assistant\n"


def test_tools_in_words_as_a_model_reads_them(characters):
    renderer = make(characters)
    said = renderer.write(calling("Let me look.", "color"))
    first = renderer.first_prompt([QUESTION[0], Message("user", "Which color is it?")], [SEARCH])
    ids = [*first, *said, *renderer.next_prompt(said, [Message("tool", "It is red.")], [SEARCH])]
    assert (
        characters.decode(ids)
        == """\
<turn>system
Be brief.

You can call these tools:
search(query: string, most: optional integer): Searches the documents.

To call a tool, end your turn like this; its result comes between <result> and </result>:
<tool>{"name": "search", "arguments": {"query": "..."}}</tool><end>
<turn>user
Which color is it?<end>
<turn>assistant
Let me look.
<tool>{"name": "search", "arguments": {"query": "color"}}</tool><end>
<turn>user
<result>
It is red.
</result><end>
<turn>assistant
"""
    )


@pytest.mark.parametrize("name", ["qwen2_5", "gemma3"])
def test_a_prompt_is_remembered_with_all_of_its_tools(characters, name):
    renderer, words = (
        make(characters, name),
        {"type": "object", "properties": {"word": {"type": "string"}}},
    )
    tools = [SEARCH, replace(SEARCH, description="Looks."), replace(SEARCH, parameters=words)]
    assert len({tuple(renderer.first_prompt(QUESTION, [tool])) for tool in tools}) == len(tools)


def test_earlier_calls_in_first_messages_are_shown_as_the_template_would(characters):
    renderer = make(characters, "qwen2_5")
    messages = [
        *QUESTION,
        calling("So.", "red", "blue"),
        Message("tool", "a"),
        Message("tool", "b"),
    ]
    assert renderer.first_prompt(messages, [SEARCH]) == template(
        characters, messages, [SEARCH], speak=True
    )


def test_a_turn_ends_with_a_stop_id_where_the_template_closes_with_none(characters):
    turn = characters.convert_tokens_to_ids("<turn>")
    for other, close in ((1, turn), (2, 2)):
        assert Renderer(characters, [turn, other], chat=True).write(Message("assistant", "4"))[
            1:
        ] == [close]


def test_a_chat_needs_a_template(characters):
    characters.chat_template = None
    with pytest.raises(TasksetError, match=r"has no chat template\. Set chat = false"):
        make(characters)
    assert make(characters, chat=False)


def test_a_template_without_the_models_turn_can_not_be_appended_to(characters):
    characters.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(TasksetError, match="none of the model's last turn"):
        make(characters).next_prompt([5, 2], [Message("user", "no")], ())


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_document_can_not_end_its_turn(smollm2, name):
    """Control tokens inside of what somebody says are only letters."""
    tokenizer, stops = put_on(deepcopy(smollm2), name)
    renderer = Renderer(tokenizer, stops, chat=True)
    special = {
        i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    evil = "".join(
        f" {text} user"
        for text in special.values()
        if text not in CALL_FORMATS[renderer.format].marks
    )
    said = renderer.write(Message("assistant", "Let me see."))

    def controls(ids):
        return [i for i in ids if i in special]

    for render in (
        lambda text: renderer.first_prompt([Message("user", text)], ()),
        lambda text: renderer.next_prompt(said, [Message("tool", text)], [SEARCH]),
        lambda text: renderer.write(Message("assistant", text)),
    ):
        assert controls(render(evil)) == controls(render("nothing of the kind"))


def test_a_turn_is_closed_once_whatever_closed_it(smollm2):
    tokenizer, stops = put_on(deepcopy(smollm2), "llama3_1")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eom_id|>"]})
    other = tokenizer.convert_tokens_to_ids("<|eom_id|>")
    renderer = Renderer(tokenizer, [*stops, other], chat=True)
    words = tokenizer("hello", add_special_tokens=False).input_ids
    usual = renderer.next_prompt([*words, stops[0]], [Message("tool", "4")], [SEARCH])
    assert renderer.next_prompt([*words, other], [Message("tool", "4")], [SEARCH]) == usual
