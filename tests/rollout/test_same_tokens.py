"""What the sampler read and said, what is recorded and what the learner trains on are the same
tokens.

A random Llama, whose vocabulary has whole calls, right and wrong ones, as single tokens: what it
says at random is full of them. A spy notes what goes into each stream of the real sampler and what
comes out.
"""

# ruff: noqa: ARG002

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chats import FOLDER, SEARCH, SPECIAL, calling
from models import character_tokenizer, full_logits, make_policy, write_model
from talk import PrefillCounter, distribution
from uptrend.config import load_config
from uptrend.policy.optimizer import Optimizer
from uptrend.policy.policy import Policy
from uptrend.records import Ending, Message, Reward, Role, Rollout, Task
from uptrend.rollout.play import RolloutRequest, play_all
from uptrend.rollout.render import Renderer
from uptrend.rollout.sampler import Extension, Limits
from uptrend.training.learner import Learner, lay_out

LAYOUTS = ("raw", "plain", "qwen")
TAGS = {"plain": ("<tool>", "</tool>"), "qwen": ("<tool_call>\n", "\n</tool_call>")}
INSIDES = [
    '{"name": "search", "arguments": {"query": "%d"}}', '{"name": "search", "parameters": {"query": "%d"}}',
    '{"name": %d}', '{"name": "search", "arguments": [%d]}',
]  # fmt: skip


def words() -> list[str]:
    """Tokens that are calls: many, so that they are said often, and openings that nothing closes.

    And signs in a row, of every number: said one after the other, they would be other tokens if
    they were tokenized again.
    """
    whole = [
        f"{a}{inside % i}{b}" for a, b in TAGS.values() for i in range(12) for inside in INSIDES
    ]
    return [*whole, *(a for a, _ in TAGS.values()), *("=" * n for n in range(2, 30))]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    tokenizer = character_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(SPECIAL["qwen2_5"])})
    tokenizer.add_tokens(words())
    ends = [
        tokenizer.eos_token_id,
        *tokenizer.convert_tokens_to_ids(["<|im_end|>", *"JKQVXYZjkqvxyz"]),
    ]
    folder = write_model(
        tmp_path_factory.mktemp("calls"),
        vocab_size=len(tokenizer),
        eos_token_id=ends,
        max_position_embeddings=8192,
    )
    tokenizer.save_pretrained(folder)
    return make_policy(folder)


@pytest.fixture(scope="module")
def renderers(policy: Policy) -> dict[str, Renderer]:
    qwen = deepcopy(policy.tokenizer)
    qwen.chat_template = (FOLDER / "qwen2_5.jinja").read_text(encoding="utf-8")
    tokenizers = {"raw": policy.tokenizer, "plain": policy.tokenizer, "qwen": qwen}
    made = {
        name: Renderer(tokenizers[name], policy.stop_ids, chat=name != "raw") for name in LAYOUTS
    }
    assert [r.format for r in made.values()] == ["plain", "plain", "qwen"]
    return made


class Spy(PrefillCounter):
    """Notes what every stream read and said, and who was sampled together."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.read: dict[int, list[list[int]]] = {}
        self.said: dict[int, list[Extension]] = {}
        self.batches: list[list[tuple[int, int]]] = []

    async def extend(self, stream: int, ids: Sequence[int], limits: Limits, seed: int) -> Extension:
        self.read.setdefault(stream, []).append(list(ids))
        said = await super().extend(stream, ids, limits, seed)
        self.said.setdefault(stream, []).append(said)
        return said

    def _begin(self, *given: Any) -> None:
        """Some turns join: the streams that are running now, each with its turn."""
        self.batches.append(
            [(r.stream, len(self.read[r.stream]) - 1) for r, _ in self._running.values()]
        )
        super()._begin(*given)


@dataclass
class Talk:
    """A play that answers as was planned, and then ends."""

    task: Task
    tools: tuple[Any, ...]
    plan: list[list[Message]]
    heard: list[Message] = field(default_factory=list)

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.task.messages

    async def respond(self, message: Message) -> list[Message] | None:
        self.heard.append(message)
        for _ in range(len(message.content) % 3):  # tools take their time
            await asyncio.sleep(0)
        return self.plan[len(self.heard) - 1] if len(self.heard) <= len(self.plan) else None

    async def score(self) -> Reward:
        return Reward.of("turns", float(len(self.heard)), 0.0, 99.0, False)

    async def close(self) -> None:
        pass


@dataclass
class Talks:
    """A taskset of planned plays."""

    chat: bool
    tools: tuple[Any, ...]
    plans: dict[str, list[list[Message]]]
    opened: list[Talk] = field(default_factory=list)

    def open(self, task: Task, seed: int) -> Talk:
        self.opened.append(Talk(task, self.tools, self.plans[task.answer]))
        return self.opened[-1]


@dataclass(frozen=True)
class Case:
    """Conversations that are played at once."""

    firsts: list[tuple[Message, ...]]
    plans: list[list[list[Message]]]
    limits: Limits
    max_turns: int
    rows: int
    tools: bool
    seed: int


def play(policy: Policy, renderer: Renderer, case: Case, chat: bool) -> tuple[list[Rollout], Spy]:
    taskset = Talks(
        chat, (SEARCH,) if case.tools else (), {str(i): plan for i, plan in enumerate(case.plans)}
    )
    requests = [
        RolloutRequest(Task(first, str(i), "talk"), taskset, 1, f"g{i % 2}", i, case.seed + i)  # type: ignore[arg-type]
        for i, first in enumerate(case.firsts)
    ]
    spy = Spy(policy)
    rollouts = asyncio.run(
        play_all(requests, spy, {chat: renderer}, case.limits, case.max_turns, case.rows)
    )
    assert not spy._streams
    return rollouts, spy


def check(policy: Policy, renderer: Renderer, case: Case, chat: bool) -> tuple[list[Rollout], Spy]:
    """Play it, and compare what was sampled, recorded and learned from."""
    rollouts, spy = play(policy, renderer, case, chat)
    config = load_config(
        {
            "sampling": {
                "groups": 2, "size": 2, "max_tokens": case.limits.max_tokens, "max_turns": case.max_turns,
                "temperature": case.limits.temperature, "context": case.limits.context,
                "repetition_penalty": case.limits.repetition_penalty,
            }
        }
    )  # fmt: skip
    exp = lay_out(rollouts, config)
    learner = Learner(policy, Optimizer(policy.flat, config.learning), config)
    learner_bs = learner.logprobs(exp, reference=False)
    for b, (rollout, line) in enumerate(zip(rollouts, exp.sequences, strict=True)):
        read, said = spy.read.get(b, []), spy.said.get(b, [])
        (s,) = rollout.sequences
        rows = [
            (token, turn, role)
            for turn, (new, extension) in enumerate(zip(read, said, strict=True))
            for tokens, role in (
                (new, Role.TOOL if turn else Role.PROMPT),
                (extension.ids.tolist(), Role.MODEL),
            )
            for token in tokens
        ]
        assert list(zip(s.ids.tolist(), s.turns.tolist(), s.roles.tolist(), strict=True)) == rows
        assert line.ids.tolist() == [token for token, _, _ in rows]
        assert line.sampled.tolist() == [
            i for i, (_, _, role) in enumerate(rows) if role == Role.MODEL
        ]
        assert line.attended.all()
        assert exp.real_bs[b].sum() == len(line.sampled)
        check_messages(rollout, renderer, case, read, said)
        if said:
            sampled = np.concatenate([extension.logprobs for extension in said])
            np.testing.assert_array_equal(exp.sampler_bs[b, : len(sampled)], sampled)
            np.testing.assert_allclose(learner_bs[b, : len(sampled)], sampled, atol=1e-4)
            logits, ids = full_logits(policy, s.ids.tolist()), s.ids.tolist()
            whole = [
                np.log(distribution(logits[at - 1], case.limits, ids[:at])[ids[at]])
                for at in line.sampled
            ]
            np.testing.assert_allclose(whole, sampled, atol=1e-4)
    return rollouts, spy


def check_messages(
    rollout: Rollout, renderer: Renderer, case: Case, read: list[list[int]], said: list[Extension]
) -> None:
    """The recorded messages are those of the tokens, and every answer was read in its place."""
    first, tools = case.firsts[rollout.index], (SEARCH,) if case.tools else ()
    messages = list(first)
    for turn, extension in enumerate(said):
        ids = extension.ids.tolist()
        before = case.plans[rollout.index][turn - 1] if turn else ()
        assert read[turn] == (
            renderer.next_prompt(said[turn - 1].ids.tolist(), before, tools)
            if turn
            else renderer.first_prompt(first, tools)
        )
        messages.append(renderer.read(ids) if tools else Message("assistant", renderer.text(ids)))
        messages += case.plans[rollout.index][turn] if turn < len(case.plans[rollout.index]) else []
    assert list(rollout.messages) == messages


MARKUP = [
    "<tool>",
    "===",
    "<end>\n<turn>user",
    "<|im_end|>",
    "</result>",
    "<tool_response>",
    "\n\n",
    " ",
]
TEXT = st.text(max_size=12) | st.sampled_from([*MARKUP, words()[0], words()[2]])
ANSWER = st.builds(Message, st.sampled_from(["tool", "tool", "user"]), TEXT)
SHOWN = (
    calling("Look.", "a", "b"),
    Message("tool", "1"),
    Message("tool", "2"),
    Message("assistant", "<tool>{"),
)
FIRST = st.builds(
    lambda system, shown, asked: (*system, Message("user", "Q: "), *shown, Message("user", asked)),
    st.sampled_from([(), (Message("system", "Be brief."),)]),
    st.sampled_from([(), SHOWN]),
    TEXT,
)
LIMITS = st.builds(
    Limits,
    max_tokens=st.integers(1, 7),
    context=st.sampled_from([60, 700, 1400, 4000, 4000]),
    temperature=st.sampled_from([1.0, 2.5]),
    stop=st.sampled_from([(), ("e", "1 ", "ab"), ("</tool>", "</tool_call>")]),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 5))
    plans = [draw(st.lists(st.lists(ANSWER, max_size=3), max_size=3)) for _ in range(count)]
    firsts = [draw(FIRST)] * count if draw(st.booleans()) else [draw(FIRST) for _ in range(count)]
    return Case(
        firsts, plans, draw(LIMITS), draw(st.integers(1, 4)), draw(st.integers(0, 3)), draw(st.booleans()),
        draw(st.integers(0, 999)),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_conversation(policy: Policy, renderers: dict[str, Renderer], layout: str) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases())
    def same(case: Case) -> None:
        check(policy, renderers[layout], case, chat=layout != "raw")

    same()


def many(count: int, limits: Limits, turns: int = 4, rows: int = 0) -> Case:
    """Rollouts of 1, 2, 3, … turns of one question."""
    plans = [
        [[Message("tool", f"{i} {t}"), Message("user", "Go on.")] for t in range(i % turns)]
        for i in range(count)
    ]
    first = (Message("user", "Which color? "),)
    return Case([first] * count, plans, limits, max_turns=turns - 1, rows=rows, tools=True, seed=7)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_conversations_hold_all_that_can_happen(
    policy: Policy, renderers: dict[str, Renderer], layout: str
) -> None:
    """Also the proof that the cases above are not idle: calls, several, unreadable ones, and every
    ending.
    """
    kinds, endings = set(), set()
    prompt = len(renderers[layout].first_prompt(many(1, Limits(1, 1)).firsts[0], (SEARCH,)))
    for stop, room in (((), 4000), (("e", "ab"), 60)):
        limits = Limits(max_tokens=8, context=prompt + room, temperature=2.5, stop=stop)
        rollouts, _ = check(policy, renderers[layout], many(32, limits), chat=layout != "raw")
        endings |= {rollout.ended for rollout in rollouts}
        for message in (
            m for rollout in rollouts for m in rollout.messages if m.role == "assistant"
        ):
            kinds.add("problem" if message.problem else min(len(message.calls), 2))
    assert kinds == {0, 1, 2, "problem"}
    others = {
        Ending.TOOL_ERROR,
        Ending.TASK_ERROR,
        Ending.TIME_LIMIT,
    }  # nothing fails, and nothing has a clock
    assert endings == set(Ending) - others
    again = [
        policy.tokenizer(policy.tokenizer.decode(r.sequences[0].ids)).input_ids for r in rollouts
    ]
    assert any(a != r.sequences[0].ids.tolist() for a, r in zip(again, rollouts, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("turns", [1, 2, 4])
def test_a_later_turn_does_not_pay_for_earlier_ones(
    policy: Policy, renderers: dict[str, Renderer], layout: str, turns: int
) -> None:
    """Every token that is not sampled once, and again only the last one said, whose keys were never
    computed.
    """
    plan = [[Message("tool", "red"), Message("user", "And?")]] * (turns - 1)
    case = Case(
        [(Message("user", "Which? "),)], [plan], Limits(6, 4000), turns, 0, tools=True, seed=1
    )
    (rollout,), spy = check(policy, renderers[layout], case, chat=layout != "raw")
    assert len(spy.said[0]) == turns
    (s,) = rollout.sequences
    assert spy.prefilled == int((~s.sampled).sum()) + turns - 1


@pytest.mark.parametrize(
    "changes",
    [
        {"top_p": 0.8},
        {"top_k": 7},
        {"min_p": 0.2},
        {"repetition_penalty": 1.5},
        {"top_p": 0.9, "repetition_penalty": 2},
    ],
)
def test_learner_and_sampler_agree_on_changed_distributions(
    policy: Policy, renderers: dict[str, Renderer], changes: dict[str, float]
) -> None:
    """Over several turns, where what a tool said is in the context too."""
    rollouts, _ = check(policy, renderers["qwen"], many(8, Limits(8, 4000, **changes)), chat=True)  # type: ignore[arg-type]
    assert max(s.turns.max() for r in rollouts for s in r.sequences) > 0
    for s in (s for r in rollouts for s in r.sequences):
        assert (s.support is None) == ("repetition_penalty" in changes and len(changes) == 1)
        if s.support is not None:
            assert (s.support[0] > 0).tolist() == s.sampled.tolist()


def test_a_group_pays_for_its_prompt_once(policy: Policy, renderers: dict[str, Renderer]) -> None:
    rollouts, spy = check(policy, renderers["qwen"], many(12, Limits(5, 4000)), chat=True)
    prompt = int((rollouts[0].sequences[0].roles == Role.PROMPT).sum())
    later = sum(
        int((r.sequences[0].roles == Role.TOOL).sum()) + len(spy.said[r.index]) - 1
        for r in rollouts
    )
    assert spy.prefilled == prompt + later


@pytest.mark.parametrize("rows", [0, 3])
def test_rollouts_at_different_turns_share_batches(
    policy: Policy, renderers: dict[str, Renderer], rows: int
) -> None:
    """Where few sit side by side, one that ends makes room for one that begins beside those that go
    on.
    """
    case = many(12, Limits(5, 4000), rows=rows)
    rollouts, spy = check(policy, renderers["plain"], case, chat=True)
    assert {len(spy.said[r.index]) for r in rollouts} == {1, 2, 3}
    mixed = [batch for batch in spy.batches if len({turn for _, turn in batch}) > 1]
    if rows:
        assert max(map(len, spy.batches)) <= rows
        assert any({0, 2} <= {turn for _, turn in batch} for batch in mixed)
