"""The invented atlas: rows like MuSiQue's own, answerable from their paragraphs and from nothing
else.
"""

import hashlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from questions import OFFICIAL
from scipy.stats import chisquare

from uptrend.records import ConfigError
from uptrend.tasksets.musique.atlas import AtlasOptions, make_world, row, rows

FIRST_FIFTY = "6e8cf1fcf21a753a"
DEFAULT = AtlasOptions()


@pytest.fixture(scope="module")
def many():
    return list(rows(2000, 1, DEFAULT))


def names(text, name):
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def words(name):
    return set(name.split()) - {"of"}


def facts_of(world):
    return [fact for told in world.facts.values() for fact in told]


def entities_of(world):
    return {entity for fact in facts_of(world) for entity in (fact.subject, fact.object) if entity}


def shape(value):
    """The keys and types of a row, all the way down."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return (
        [shape(value[0]) if value else "str"] if isinstance(value, list) else type(value).__name__
    )


def test_rows_look_like_the_official_ones(many):
    official = [json.loads(line) for line in OFFICIAL.read_text().splitlines()]
    assert {json.dumps(shape(made)) for made in many} == {
        json.dumps(shape(theirs)) for theirs in official
    }
    assert {made["id"].split("__")[0] for made in many} == {
        theirs["id"].split("__")[0] for theirs in official
    }
    assert len({made["question"] for made in many}) == len({made["id"] for made in many}) == 2000


def test_rows_never_change_whatever_the_process():
    code = "import sys, json; from uptrend.tasksets.musique.atlas import *; "
    code += "sys.stdout.write(json.dumps(list(rows(50, 0, AtlasOptions()))))"
    for hash_seed in ("1", "2024"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True
        )
        assert hashlib.sha256(done.stdout).hexdigest()[:16] == FIRST_FIFTY


def test_more_rows_begin_with_the_same_ones_and_another_seed_has_others():
    nine = list(rows(9, 3, DEFAULT))
    assert [list(rows(count, 3, DEFAULT)) for count in (0, 5)] == [[], nine[:5]]
    first, second = ({made["question"] for made in rows(200, seed, DEFAULT)} for seed in (0, 1))
    assert first.isdisjoint(second)


def check_row(made, options):
    """Everything that must hold of a row by itself."""
    paragraphs, parts = made["paragraphs"], made["question_decomposition"]
    assert [p["idx"] for p in paragraphs] == list(range(options.paragraphs))
    assert len({p["title"] for p in paragraphs}) == options.paragraphs
    assert int(made["id"][0]) == len(parts)
    assert len(parts) in options.hops
    for p in paragraphs:
        assert names(p["paragraph_text"].split(".")[0], p["title"])
        assert 20 <= len(p["paragraph_text"].split()) <= 45
        assert re.fullmatch(r"([A-Z][a-z]+ (of )?)?[A-Z][a-z]+", p["title"])
        assert re.fullmatch(r"[A-Za-z0-9 .,']+", p["paragraph_text"])
    supports = [part["paragraph_support_idx"] for part in parts]
    assert sorted(supports) == [p["idx"] for p in paragraphs if p["is_supporting"]]
    # Following the single questions leads to the answer, by one paragraph each.
    for i, part in enumerate(parts):
        subject = paragraphs[supports[i]]["title"]
        asked = re.sub(r"#(\d)", lambda found: parts[int(found[1]) - 1]["answer"], part["question"])
        assert names(asked, subject)
        assert i == 0 or (subject == parts[i - 1]["answer"] and f"#{i}" in part["question"])
        stating = [
            p
            for p in paragraphs
            if all(names(p["paragraph_text"], n) for n in (subject, part["answer"]))
        ]
        assert [p["idx"] for p in stating] == [supports[i]]
        assert not names(made["question"], part["answer"])
    assert parts[-1]["answer"] == made["answer"]
    assert all(
        re.fullmatch(rf"the (river )?{made['answer']}", alias) for alias in made["answer_aliases"]
    )
    assert names(made["question"], paragraphs[supports[0]]["title"])
    # Nothing else mentions the answer, except perhaps a paragraph of its own.
    mentions = [p for p in paragraphs if names(p["paragraph_text"], made["answer"])]
    assert all(p["idx"] == supports[-1] or p["title"] == made["answer"] for p in mentions)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.integers(-(2**40), 2**40),
    st.lists(st.sampled_from([2, 3, 4]), min_size=1, unique=True),
    st.integers(0, 44),
)
def test_any_seed_and_options_hold_together(seed, hops, more):
    options = AtlasOptions(tuple(hops), min(max(hops) + 2 + more, 50))
    made = row(seed, options)
    check_row(made, options)
    assert made == row(seed, options)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**40), st.sampled_from([8, 20]))
def test_worlds_are_consistent_and_every_hop_has_a_near_miss(seed, paragraphs):
    world, chain = make_world(seed, AtlasOptions(paragraphs=paragraphs))
    facts, entities = facts_of(world), entities_of(world)
    assert len({(fact.subject, fact.relation.name) for fact in facts}) == len(facts)
    for fact in facts:
        stated = {other.relation.name for other in world.facts.get(fact.object, ())}
        assert stated.isdisjoint(fact.relation.bars)
        assert fact.object is None or fact.relation.older[0] <= fact.subject.year - fact.object.year
    assert (
        len({entity.year for entity in entities})
        == len({entity.name for entity in entities})
        == len(entities)
    )
    assert all(1000 <= entity.year <= 2025 for entity in entities)
    own = {fact.subject for fact in chain}
    for hop in chain:
        others = [fact for fact in facts if fact.subject not in own]
        near = [
            fact for fact in others if (fact.relation, fact.wording) == (hop.relation, hop.wording)
        ]
        assert near
        assert all(fact.answer != hop.answer for fact in near)
    # Only names beside the chain share words, and some does.
    allowed = set().union(*(words(subject.name) for subject in own))
    assert any(words(entity.name) & allowed for entity in world.facts.keys() - own)
    assert all(
        words(a.name) & words(b.name) <= allowed for a, b in itertools.combinations(entities, 2)
    )
    if answer := chain[-1].object:
        assert all(
            words(answer.name).isdisjoint(words(entity.name)) for entity in entities - {answer}
        )


def test_answers_can_not_be_guessed_from_questions(many):
    assert Counter(made["answer"] for made in many).most_common(1)[0][1] < 0.01 * len(many)
    for made in many:
        assert not words(made["answer"]) & set(re.findall(r"\w+", made["question"]))
    titles = Counter(p["title"] for made in many for p in made["paragraphs"] if p["is_supporting"])
    people = {title: count for title, count in titles.items() if title.count(" ") == 1}
    assert sum(people.values()) - len(people) <= 0.005 * len(many)
    years = {int(made["answer"]) for made in many if made["answer"].isdigit()}
    assert (len(years) > 250, max(years) - min(years) > 400) == (True, True)


def rivals(seed):
    """Everything of the answer's type that the paragraphs mention, and the answer."""
    world, chain = make_world(seed, DEFAULT)
    if chain[-1].object is None:
        return sorted({fact.answer for fact in facts_of(world) if fact.object is None}), chain[
            -1
        ].answer
    same_kind = (
        entity.name for entity in entities_of(world) if entity.kind == chain[-1].object.kind
    )
    return sorted(same_kind), chain[-1].answer


@pytest.mark.slow
def test_a_random_choice_of_the_right_type_is_seldom_right():
    rng = random.Random(0)
    drawn = [rivals(seed) for seed in range(1000)]
    right = sum(rng.choice(candidates) == answer for candidates, answer in drawn) / len(drawn)
    expected = sum(1 / len(candidates) for candidates, _ in drawn) / len(drawn)
    assert expected < 0.15
    assert right == pytest.approx(expected, abs=0.04)


def test_hops_and_places_are_balanced(many):
    assert (
        0 < sum(bool(made["answer_aliases"]) for made in many) < 0.25 * len(many)
    )  # only names with articles
    parts = [made["question_decomposition"] for made in many]
    assert chisquare([Counter(map(len, parts))[hops] for hops in (2, 3, 4)]).pvalue > 1e-4
    for hop in (0, -1):
        places = Counter(part[hop]["paragraph_support_idx"] for part in parts)
        assert chisquare([places[i] for i in range(20)]).pvalue > 1e-4


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"paragraphs": 5}, "paragraphs = 5 should be from 6"),
        ({"hops": (2,), "paragraphs": 3}, "paragraphs = 3 should be from 4"),
        ({"paragraphs": 51}, "paragraphs = 51"),
        *(({"hops": hops}, "hops") for hops in ((), (1, 2), (5,), (2, 2))),
    ],
)
def test_options_out_of_range_name_their_key(options, key):
    with pytest.raises(ConfigError, match=re.escape(key)):
        AtlasOptions(**options)
