"""What the model reads, turn after turn, is what the template would say of the whole conversation."""

import pytest

from uptrend.policy.tiny import character_tokenizer
from uptrend.records import Message, TasksetError, Tool
from uptrend.rollout.render import Renderer

QUESTION = [Message("system", "Be brief."), Message("user", "What is 2 + 2?")]
TOOL = Tool("look", "Looks something up.", {"type": "object", "properties": {"word": {"type": "string"}}})


def whole(tokenizer, messages, *, speak):
    said = [{"role": m.role, "content": m.content} for m in messages]
    text = tokenizer.apply_chat_template(said, add_generation_prompt=speak, tokenize=False)
    return tokenizer(text, add_special_tokens=False).input_ids


def converse(tokenizer, end):
    """Three turns; what is appended is compared with the template's rendering each time."""
    renderer = Renderer(tokenizer, [end], chat=True)
    messages = list(QUESTION)
    ids = list(renderer.first(messages, ()))
    assert ids == whole(tokenizer, messages, speak=True)
    for words, answer in (("4", "Are you sure?"), ("yes, 4!", "And 3 + 3?")):
        said = [*tokenizer(words, add_special_tokens=False).input_ids, end]
        assert renderer.text(said) == words
        answers = [Message("user", answer)]
        ids += [*said, *renderer.later(said, answers, ())]
        messages += [Message("assistant", words), *answers]
        assert ids == whole(tokenizer, messages, speak=True)
    return renderer


def test_a_conversation_with_tinys_template():
    tokenizer = character_tokenizer()
    converse(tokenizer, tokenizer.eos_token_id)


def test_a_conversation_with_smollm2s_template(smollm2_folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    converse(tokenizer, tokenizer.eos_token_id)


def test_a_turn_that_did_not_close_is_closed():
    """Cut by length, or stopped by a text: the close that the template puts there is still read."""
    tokenizer = character_tokenizer()
    renderer = Renderer(tokenizer, [tokenizer.eos_token_id], chat=True)
    said = tokenizer("4 and").input_ids
    ids = [*renderer.first(QUESTION, ()), *said, *renderer.later(said, [Message("tool", "no")], ())]
    messages = [*QUESTION, Message("assistant", "4 and"), Message("tool", "no")]
    assert ids == whole(tokenizer, messages, speak=True)


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
    assert chat.first(QUESTION, ()) == whole(tokenizer, QUESTION, speak=True)


def test_tools_are_told_to_the_template():
    tokenizer = character_tokenizer()
    parameter = "t.function.parameters.properties.word"
    tokenizer.chat_template = (
        f"{{% for t in tools %}}{{{{ t.function.name }}}}: {{{{ {parameter}.type }}}}{{% endfor %}}"
    )
    renderer = Renderer(tokenizer, [tokenizer.eos_token_id], chat=True)
    assert tokenizer.decode(renderer.first(QUESTION, [TOOL])) == "look: string"


def test_what_a_turn_says_leaves_out_only_its_end():
    tokenizer = character_tokenizer()
    end = tokenizer.eos_token_id
    renderer = Renderer(tokenizer, [end], chat=False)
    assert renderer.text([*tokenizer(" 12 ").input_ids, end]) == " 12 "
    assert renderer.text(tokenizer("12").input_ids) == "12"
    assert renderer.text([end]) == ""
    assert renderer.text([]) == ""


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
