"""Warm start from recorded conversations: what is trained is what the assistant said, by
transformers' own rendering, and nothing else.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chats import put_on
from models import character_tokenizer, make_policy, write_model
from uptrend.config import load_config
from uptrend.policy.optimizer import Optimizer
from uptrend.policy.policy import Policy
from uptrend.records import (
    ConfigError,
    Message,
    ModelError,
    Role,
    Rollout,
    Run,
    TasksetError,
    rollouts_of,
)
from uptrend.rollout.render import Renderer
from uptrend.runner.prepare import with_demonstrated_tasks
from uptrend.runner.rollouts import repeat_rollouts
from uptrend.runner.runs import warmstart
from uptrend.tasks.pool import make_heldout, make_pool
from uptrend.training.learner import Learner, lay_out
from uptrend.training.warmstart import demonstrate, supervised

SYSTEM = {"role": "system", "content": "Be brief."}
ONE_TURN = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
FOLLOWED = [
    SYSTEM,
    *ONE_TURN,
    {"role": "user", "content": "And 3 + 3? Say 4 again first."},
    {"role": "assistant", "content": "4, and then: 6.\nDone."},
]
SEARCHED = [
    {"role": "user", "content": "What is x?"},
    {"role": "assistant", "content": "I search."},
    {"role": "tool", "content": "x is 4"},
    {"role": "tool", "content": "y is 5"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "Thanks"},
    {"role": "assistant", "content": "Welcome"},
]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model_of(tmp_path_factory.mktemp("qwen"), "qwen2_5")


def chat_model_of(folder: Path, template: str) -> Path:
    """A random model with a real model's chat template, whose turns end as the template closes
    them.
    """
    tokenizer, (_, tokenizer.eos_token_id) = put_on(character_tokenizer(), template)
    write_model(folder, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    tokenizer.save_pretrained(folder)
    return folder


def recipe(folder: Path, lines: list[Any], model: Path, **warm: Any) -> dict[str, Any]:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "chats.jsonl").write_text(text, encoding="utf-8")
    return {
        "model": {"name": str(model)},
        "eval": {"name": "letters:Letters", "tasks": 2},
        "sampling": {"context": 400},
        "warmstart": {"file": str(folder / "chats.jsonl"), "batch": 4, "lr": 3e-3, **warm},
        "compute": {"threads": 1},
    }


def demonstrated(table: dict[str, Any], policy: Policy) -> tuple[list[Rollout], list[str]]:
    config = load_config(table)
    pool = make_pool(with_demonstrated_tasks(config), make_heldout(config))
    rollouts, notes = demonstrate(policy, pool, config)
    return rollouts, [*pool.notes, *notes]


def independent(tokenizer: Any, messages: list[dict[str, Any]], **variables: Any) -> Any:
    """The ids of the whole conversation by apply_chat_template alone, and which are trained: found
    in its text, by characters.
    """
    text = tokenizer.apply_chat_template(messages, tokenize=False, **variables)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    is_trained = np.zeros(len(text), bool)
    for turn in re.finditer(r"(?<=<\|im_start\|>assistant\n).*?<\|im_end\|>", text, re.S):
        is_trained[turn.start() : turn.end()] = True
    mask = [bool(is_trained[start:end].all()) for start, end in encoded.offset_mapping]
    return encoded.input_ids, mask


def test_trained_tokens_are_those_of_transformers_own_rendering(
    chat_model: Path, tmp_path: Path
) -> None:
    policy = make_policy(chat_model)
    conversations = [ONE_TURN, FOLLOWED, SEARCHED]
    lines = [{"messages": messages} for messages in conversations]
    table = recipe(tmp_path, lines, chat_model)
    rollouts, notes = demonstrated(table, policy)
    assert notes == []
    config = supervised(load_config(table), len(rollouts))
    exp = lay_out(rollouts, config)
    for number, (rollout, messages) in enumerate(zip(rollouts, conversations, strict=True)):
        (sequence,) = rollout.sequences
        ids, mask = independent(policy.tokenizer, messages)
        # The template ends the last turn's line, which nothing in the sequence reads.
        assert policy.tokenizer.decode(ids[-1]) == "\n"
        assert sequence.ids.tolist() == ids[:-1]
        assert (sequence.roles == Role.MODEL).tolist() == mask[:-1]
        assert rollout.task == f"chats.jsonl:{number + 1}"
        trained = policy.tokenizer.decode(sequence.ids[sequence.sampled])
        contents = [m["content"] for m in messages if m["role"] == "assistant"]
        assert trained == "".join(f"{content}<|im_end|>" for content in contents)
        # The learner trains those, each once, and no others.
        (row,) = np.flatnonzero(exp.rollouts_b.numpy() == number)
        assert int(exp.mask_bs[row].sum()) == sum(mask)


def test_calls_are_written_in_the_models_own_format(chat_model: Path, tmp_path: Path) -> None:
    policy = make_policy(chat_model)
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    function = {"name": "search", "description": "Searches.", "parameters": schema}
    arguments = {"query": "x"}
    tools = [{"type": "function", "function": function}]

    def messages(arguments: Any) -> list[dict[str, Any]]:
        call = {
            "id": "1",
            "type": "function",
            "function": {"name": "search", "arguments": arguments},
        }
        turn = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "1", "content": "x is 4"}
        return [ONE_TURN[0], turn, result, ONE_TURN[1]]

    lines = [{"messages": messages(json.dumps(arguments)), "tools": tools}]
    table = recipe(tmp_path, lines, chat_model)
    table["sampling"]["context"] = 800
    (rollout,), _ = demonstrated(table, policy)
    (sequence,) = rollout.sequences
    ids, mask = independent(policy.tokenizer, messages(arguments), tools=tools)
    assert sequence.ids.tolist() == ids[:-1]
    assert sequence.sampled.tolist() == mask[:-1]
    trained = policy.tokenizer.decode(sequence.ids[sequence.sampled])
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
    letters = policy.tokenizer.decode(policy.tokenizer(call, add_special_tokens=False).input_ids)
    assert trained == f"{letters}<|im_end|>4<|im_end|>"


def test_thoughts_that_a_template_takes_out_are_several_sequences(tmp_path: Path) -> None:
    model = chat_model_of(tmp_path / "qwen3", "qwen3")
    policy = make_policy(model)
    thought = "<think>\nSo.\n</think>\n\n"
    turns = [f"{thought}Four.", f"{thought}Five."]
    messages = [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": turns[0]},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": turns[1]},
    ]
    table = recipe(tmp_path, [{"messages": messages}], model)
    (rollout,), notes = demonstrated(table, policy)
    assert notes == []
    assert len(rollout.sequences) == 2
    for number, sequence in enumerate(rollout.sequences):
        prompt = policy.tokenizer.apply_chat_template(
            messages[: 2 * number + 1], tokenize=False, add_generation_prompt=True
        )
        whole = f"{prompt}{turns[number]}<|im_end|>"
        assert policy.tokenizer.decode(sequence.ids) == whole
        trained = policy.tokenizer.decode(sequence.ids[sequence.sampled])
        assert trained == f"{turns[number]}<|im_end|>"
    # The longest sequence is what the context has to hold.
    longest = max(len(sequence.ids) for sequence in rollout.sequences)
    table["sampling"]["context"] = longest
    assert demonstrated(table, policy)[1] == []
    table["sampling"]["context"] = longest - 1
    with pytest.raises(TasksetError, match=rf"\(the longest rollout: {longest}\)"):
        demonstrated(table, policy)


def test_a_prompt_that_begins_thoughts_is_followed_by_them_once() -> None:
    tokenizer, stops = put_on(character_tokenizer(), "qwen3", thinks=True)
    renderer = Renderer(tokenizer, stops, chat=True)
    prompt = renderer.first_prompt([Message("user", "Why?")], ())
    turn = renderer.write(Message("assistant", "<think>\nSo.\n</think>\n\nFour."), prompt)
    whole = tokenizer.decode([*prompt, *turn])
    assert whole.endswith("assistant\n<think>\nSo.\n</think>\n\nFour.<|im_end|>")


def test_a_model_without_a_template_learns_raw_text(llama_folder: Path, tmp_path: Path) -> None:
    policy = make_policy(llama_folder)
    policy.tokenizer.chat_template = None
    table = recipe(tmp_path, [{"messages": FOLLOWED}], llama_folder)
    (rollout,), notes = demonstrated(table, policy)
    (sequence,) = rollout.sequences
    end = policy.tokenizer.eos_token
    turns = [FOLLOWED[i]["content"] for i in (2, 4)]
    assert (
        policy.tokenizer.decode(sequence.ids[sequence.sampled]) == f"{turns[0]}{end}{turns[1]}{end}"
    )
    first, second = (FOLLOWED[i]["content"] for i in (1, 3))
    whole = f"Be brief.{first}{turns[0]}{end}{second}{turns[1]}{end}"
    assert policy.tokenizer.decode(sequence.ids) == whole
    assert notes == []
    with pytest.raises(TasksetError, match="the model has no chat template"):
        demonstrated(table | {"tasks": {"chat": True}}, policy)


def test_raw_text_from_a_model_that_could_chat_is_noted(chat_model: Path, tmp_path: Path) -> None:
    policy = make_policy(chat_model)
    table = recipe(tmp_path, [{"messages": ONE_TURN}], chat_model)
    for section in ("model", "tasks"):
        raw = table | {section: table.get(section, {}) | {"chat": False}}
        (rollout,), (note,) = demonstrated(raw, policy)
        assert "<|im_start|>" not in policy.tokenizer.decode(rollout.sequences[0].ids)
        assert note.endswith(f"set {section}.chat = true.")


def test_long_and_held_out_conversations_are_left_out_and_counted(
    chat_model: Path, tmp_path: Path
) -> None:
    policy = make_policy(chat_model)
    long = [{"role": "user", "content": "x" * 500}, ONE_TURN[1]]
    # Its second turn alone does not fit: nothing of it is learned.
    cut = [*ONE_TURN, *long]
    held_out = [SYSTEM, {"role": "user", "content": "Say letters, 0: "}, ONE_TURN[1]]
    conversations = [ONE_TURN, long, cut, held_out, FOLLOWED, SEARCHED]
    lines = [{"messages": messages} for messages in conversations]
    rollouts, notes = demonstrated(recipe(tmp_path, lines, chat_model, tasks=4), policy)
    assert [rollout.task for rollout in rollouts] == ["chats.jsonl:1", "chats.jsonl:5"]
    file = tmp_path / "chats.jsonl"
    longest = len(independent(policy.tokenizer, cut)[0]) - 1
    assert notes == [
        f"{file}: 1 of 6 conversations ask a question that [eval] holds out, and were left out",
        f"{file}: the first 4 of 6 conversations are learned (warmstart.tasks = 4)",
        "2 of 4 demonstrations were left out: 2 exceeded sampling.context = 400 (the longest"
        f" rollout: {longest}).",
    ]
    with pytest.raises(TasksetError, match=r"1 of 1 .* sampling\.context = 400"):
        demonstrated(recipe(tmp_path, lines[1:2], chat_model), policy)
    with pytest.raises(TasksetError, match=r"all conversations ask questions that \[eval\] holds"):
        demonstrated(recipe(tmp_path, lines[3:4], chat_model), policy)


def test_the_recipes_folder_is_where_a_relative_path_starts(
    chat_model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    table = recipe(folder, [{"messages": ONE_TURN}], chat_model)
    file = table["warmstart"]["file"]
    (folder / "chat.toml").write_text('[warmstart]\nfile = "chats.jsonl"\n')
    assert load_config(folder / "chat.toml").warmstart.file == file
    with pytest.raises(ConfigError, match=r"warmstart.file = 3 should be a text"):
        load_config({"warmstart": {"file": 3}})


USER, ASSISTANT = ONE_TURN


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", r"chats\.jsonl:2 is not JSON: "),
        ([USER, ASSISTANT], r'chats\.jsonl:2 should be an object, for example {"messages": \['),
        ({"conversations": []}, r":2 has no messages; a line is, .* Its keys are conversations\."),
        ({"messages": []}, r":2 has messages = \[\]; they should be a list, for example"),
        ({"messages": ["hi"]}, r":2: message 1 = 'hi' should be an object with role and content"),
        (
            {"messages": [USER, {"role": "gpt", "content": "4"}]},
            r":2: message 2 has role 'gpt'; it should be one of system, user, assistant, tool",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}, ASSISTANT]},
            r":2: message 1 has content \[{'type': 'text'}\]; it should be a text",
        ),
        ({"messages": [USER]}, r":2 has no message of the assistant"),
        ({"messages": [ASSISTANT]}, r":2 begins with a message of role 'assistant'; the first"),
        ({"messages": [USER, ASSISTANT, USER]}, r":2 ends with a message of role 'user'; the last"),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, r":2: message 2 is empty"),
        (
            {"messages": [USER, {**ASSISTANT, "weight": 0}]},
            r":2: message 2 has weight = 0: every message of the assistant is learned",
        ),
        (
            {"messages": [USER, {**ASSISTANT, "tool_calls": [{"function": {"name": "f"}}]}]},
            r":2: message 2: the arguments of f should be an object",
        ),
        (
            {"messages": [USER, {**ASSISTANT, "tool_calls": "f"}]},
            r":2: message 2: tool_calls has 'f'; each should be an object with a name",
        ),
        ({"messages": [USER, ASSISTANT], "tools": ["f"]}, r":2: tools has 'f'; each should be"),
    ],
)
def test_a_wrong_line_is_named_with_what_would_be_right(
    chat_model: Path, tmp_path: Path, line: Any, message: str
) -> None:
    config = load_config(recipe(tmp_path, [], chat_model))
    text = line if isinstance(line, str) else json.dumps(line)
    first = json.dumps({"messages": ONE_TURN})
    (tmp_path / "chats.jsonl").write_text(f"{first}\n{text}\n", encoding="utf-8")
    with pytest.raises(TasksetError, match=message):
        warmstart(config, tmp_path / "model", runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_an_empty_or_missing_file_is_refused(chat_model: Path, tmp_path: Path) -> None:
    config = load_config(recipe(tmp_path, [], chat_model))
    with pytest.raises(TasksetError, match=r"chats\.jsonl has no conversations; a line is, for"):
        warmstart(config, tmp_path / "model", runs=tmp_path / "runs")
    (tmp_path / "chats.jsonl").unlink()
    with pytest.raises(TasksetError, match=r"chats\.jsonl can't be read: No such file"):
        warmstart(config, tmp_path / "model", runs=tmp_path / "runs")


def test_roles_that_a_template_refuses_are_named(tmp_path: Path) -> None:
    model = chat_model_of(tmp_path / "gemma", "gemma3")
    table = recipe(tmp_path, [{"messages": [USER, USER, ASSISTANT]}], model)
    message = (
        "^Task chats.jsonl:1: The model's chat template refuses messages of the roles user, user"
    )
    with pytest.raises(TasksetError, match=message):
        demonstrated(table, make_policy(model))


def test_the_gradient_of_full_weights_and_of_adapters_is_that_of_the_assistants_tokens(
    chat_model: Path, tmp_path: Path
) -> None:
    """By hand: transformers' own forward and rendering, cross-entropy over the assistant's
    tokens.
    """
    lines = [{"messages": messages} for messages in (ONE_TURN, FOLLOWED, SEARCHED)]
    table = recipe(tmp_path, lines, chat_model)
    for lora in (False, True):
        policy = make_policy(chat_model, lora=lora)
        rollouts, _ = demonstrated(table, policy)
        config = supervised(load_config(table), len(rollouts))
        exp = lay_out(rollouts, config)
        learner = Learner(policy, Optimizer(policy.flat, config.learning), config)
        update = learner.update(
            exp, torch.ones_like(exp.sampler_bs), 1, old_bs=None, reference_bs=None
        )

        other = make_policy(chat_model, lora=lora)
        losses = []
        for line in lines:
            ids, mask = independent(other.tokenizer, line["messages"])
            labels = torch.tensor(ids).masked_fill(~torch.tensor(mask), -100)
            logits = other.model(input_ids=torch.tensor([ids])).logits[0, :-1]
            losses.append(torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum"))
        n_trained = int(exp.mask_bs.sum())
        (torch.stack(losses).sum() / n_trained).backward()
        expected = float(other.flat.gradient.norm())
        assert update.applied[0].norm_before == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("lora", "lr"), [(None, 3e-3), ({"r": 16}, 2e-2)])
def test_a_model_learns_what_the_assistant_said(
    chat_model: Path, tmp_path: Path, lora: dict[str, int] | None, lr: float
) -> None:
    """All weights and the model, or adapters, which are saved as such."""
    lines = [{"messages": messages} for messages in (ONE_TURN, FOLLOWED, SEARCHED)]
    table = recipe(tmp_path, lines, chat_model, epochs=60, lr=lr)
    if lora is not None:
        table["model"]["lora"] = lora
    run = warmstart(load_config(table), tmp_path / "out", runs=tmp_path / "runs")
    losses = [line["warmstart/loss/mean"] for line in run.metric_lines]
    assert len(losses) == 60
    assert losses[-1] < 0.1 * losses[0]
    assert {line["tokens/trained/prompt/count"] for line in run.metric_lines} == {0}
    assert {line["tokens/trained/tool/count"] for line in run.metric_lines} == {0}
    assert run.info["tasks"]["count"] == 3
    saved = "config.json" if lora is None else "adapter_config.json"
    assert (tmp_path / "out" / saved).exists()
    assert run.info["model"]["trainable"] < run.info["model"]["parameters"] or lora is None
    if lora is not None:
        table["model"]["name"] = str(tmp_path / "out")
        with pytest.raises(ModelError, match="is an adapter, and one that is learned on top"):
            warmstart(load_config(table), tmp_path / "more", runs=tmp_path / "runs")

    # The model says it by itself, and closes its turn.
    policy = make_policy(tmp_path / "out")
    renderer = Renderer(policy.tokenizer, policy.stop_ids, chat=True)
    prompt = renderer.first_prompt([Message("user", "What is x?")], ())
    written = policy.model.generate(
        torch.tensor([prompt]), max_new_tokens=20, do_sample=False, eos_token_id=policy.stop_ids
    )
    assert policy.tokenizer.decode(written[0, len(prompt) :]) == "I search.<|im_end|>"

    # Its rollouts can be played again, although the recipe's [tasks] are others.
    recorded = rollouts_of(Run(run.path).rollouts(1))
    assert all(not repeated.differences for repeated in repeat_rollouts(run, recorded))
