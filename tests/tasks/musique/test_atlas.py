"""The invented atlas: rows like MuSiQue's own, answerable from their paragraphs and from nothing else."""

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
from uptrend.tasks.musique.atlas import AtlasOptions, make_world, row, rows
from uptrend.tasks.musique.atlas_world import ATLAS, COMMON, ENDINGS, INNER, KINDS, MIDDLES, OF, RELATIONS, STARTS

FIRST_FIFTY = "6e8cf1fcf21a753a"
DEFAULT = AtlasOptions()


@pytest.fixture(scope="module")
def many():
    return list(rows(2000, 1, DEFAULT))


def names(text, name):
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def words(name):
    return set(name.split()) - {"of"}


def resolve(part, parts):
    """A sub-question with the answers of earlier ones put in."""
    return re.sub(r"#(\d)", lambda found: parts[int(found[1]) - 1]["answer"], part["question"])


def shape(value):
    """The keys and types of a row, all the way down."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    return [shape(value[0]) if value else "str"] if isinstance(value, list) else type(value).__name__


def digest(count):
    return hashlib.sha256(json.dumps(list(rows(count, 0, DEFAULT))).encode()).hexdigest()[:16]


def test_rows_look_like_the_official_ones(many):
    official = [json.loads(line) for line in OFFICIAL.read_text().splitlines()]
    assert {json.dumps(shape(made)) for made in many} == {json.dumps(shape(theirs)) for theirs in official}
    assert {made["id"].split("__")[0] for made in many} == {theirs["id"].split("__")[0] for theirs in official}


def test_rows_never_change():
    assert digest(50) == FIRST_FIFTY


@pytest.mark.parametrize("hash_seed", ["1", "2024"])
def test_rows_are_the_same_in_another_process(hash_seed):
    code = "import sys, json; from uptrend.tasks.musique.atlas import *; "
    code += "sys.stdout.write(json.dumps(list(rows(50, 0, AtlasOptions()))))"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert hashlib.sha256(done.stdout).hexdigest()[:16] == FIRST_FIFTY


def test_more_rows_begin_with_the_same_ones():
    assert list(rows(5, 3, DEFAULT)) == list(rows(9, 3, DEFAULT))[:5]
    assert list(rows(0, 3, DEFAULT)) == []


def test_neighboring_seeds_share_no_question():
    first, second = ({made["question"] for made in rows(200, seed, DEFAULT)} for seed in (0, 1))
    assert first.isdisjoint(second)


def test_questions_and_ids_are_unique(many):
    assert len({made["question"] for made in many}) == len({made["id"] for made in many}) == 2000


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
    check_path(made, supports)


def check_path(made, supports):
    """Following the single questions leads to the answer, by one paragraph each."""
    paragraphs, parts = made["paragraphs"], made["question_decomposition"]
    for i, part in enumerate(parts):
        subject = paragraphs[supports[i]]["title"]
        assert names(resolve(part, parts), subject)
        assert i == 0 or subject == parts[i - 1]["answer"]
        assert i == 0 or f"#{i}" in part["question"]
        texts = [p["paragraph_text"] for p in paragraphs]
        assert [j for j, text in enumerate(texts) if names(text, subject) and names(text, part["answer"])] == [
            supports[i]
        ]
        assert not names(made["question"], part["answer"])
    assert parts[-1]["answer"] == made["answer"]
    assert names(made["question"], paragraphs[supports[0]]["title"])
    # Nothing else mentions the answer, except perhaps a paragraph of its own.
    mentions = [p for p in paragraphs if names(p["paragraph_text"], made["answer"])]
    assert all(p["idx"] == supports[-1] or p["title"] == made["answer"] for p in mentions)


@pytest.mark.slow
def test_rows_hold_together(many):
    for made in many:
        check_row(made, DEFAULT)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
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
@given(st.integers(0, 2**40))
def test_worlds_are_consistent(seed):
    world, _ = make_world(seed, DEFAULT)
    facts = [fact for told in world.facts.values() for fact in told]
    assert len({(fact.subject, fact.relation.name) for fact in facts}) == len(facts)
    for fact in facts:
        stated = {other.relation.name for other in world.facts.get(fact.object, ())}
        assert stated.isdisjoint(fact.relation.bars)
        assert fact.object is None or fact.relation.older[0] <= fact.subject.year - fact.object.year
    entities = {entity for fact in facts for entity in (fact.subject, fact.object) if entity}
    assert len({entity.year for entity in entities}) == len({entity.name for entity in entities}) == len(entities)
    assert all(1000 <= entity.year <= 2025 for entity in entities)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**40), st.sampled_from([8, 20]))
def test_every_hop_has_a_near_miss_and_some_name_is_nearly_the_same(seed, paragraphs):
    world, chain = make_world(seed, AtlasOptions(paragraphs=paragraphs))
    own = {fact.subject for fact in chain}
    for hop in chain:
        others = [fact for entity, told in world.facts.items() if entity not in own for fact in told]
        near = [fact for fact in others if (fact.relation, fact.wording) == (hop.relation, hop.wording)]
        assert near
        assert all(fact.answer != hop.answer for fact in near)
    told = [entity.name for entity in world.facts if entity not in own]
    assert any(words(name) & words(fact.subject.name) for name in told for fact in chain)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**40))
def test_only_names_beside_the_chain_share_words(seed):
    world, chain = make_world(seed, DEFAULT)
    facts = [fact for told in world.facts.values() for fact in told]
    entities = {entity.name for fact in facts for entity in (fact.subject, fact.object) if entity}
    allowed = set().union(*(words(fact.subject.name) for fact in chain))
    for a, b in itertools.combinations(entities, 2):
        assert words(a) & words(b) <= allowed
    if chain[-1].object:
        answer = chain[-1].object.name
        assert all(words(answer).isdisjoint(words(name)) for name in entities - {answer})


def test_the_commonest_answer_is_almost_never_right(many):
    assert Counter(made["answer"] for made in many).most_common(1)[0][1] < 0.01 * len(many)


def test_what_the_question_names_is_never_right(many):
    for made in many:
        spans = re.findall(r"[A-Z][a-z]+(?: of)?(?: [A-Z][a-z]+)*|\d+", made["question"])
        assert made["answer"] not in spans
        assert not words(made["answer"]) & set(re.findall(r"\w+", made["question"]))


def rivals(seed):
    """Everything of the answer's type that the paragraphs mention, and the answer."""
    world, chain = make_world(seed, DEFAULT)
    facts = [fact for told in world.facts.values() for fact in told]
    if chain[-1].object is None:
        return sorted({fact.answer for fact in facts if fact.object is None}), chain[-1].answer
    entities = {entity for fact in facts for entity in (fact.subject, fact.object) if entity}
    return sorted(entity.name for entity in entities if entity.kind == chain[-1].object.kind), chain[-1].answer


@pytest.mark.slow
def test_a_random_choice_of_the_right_type_is_seldom_right():
    rng = random.Random(0)
    drawn = [rivals(seed) for seed in range(1000)]
    right = sum(rng.choice(candidates) == answer for candidates, answer in drawn) / len(drawn)
    expected = sum(1 / len(candidates) for candidates, _ in drawn) / len(drawn)
    assert expected < 0.15
    assert right == pytest.approx(expected, abs=0.04)


def test_no_two_questions_share_a_name(many):
    titles = Counter(p["title"] for made in many for p in made["paragraphs"] if p["is_supporting"])
    people = {title: count for title, count in titles.items() if title.count(" ") == 1}
    assert sum(people.values()) - len(people) <= 0.005 * len(many)


def test_years_vary(many):
    years = {int(made["answer"]) for made in many if made["answer"].isdigit()}
    assert len(years) > 250
    assert max(years) - min(years) > 400


def test_hops_are_balanced(many):
    counts = Counter(len(made["question_decomposition"]) for made in many)
    assert sorted(counts) == [2, 3, 4]
    assert chisquare(list(counts.values())).pvalue > 1e-4


def test_supporting_paragraphs_stand_anywhere(many):
    for hop in (0, -1):
        places = Counter(made["question_decomposition"][hop]["paragraph_support_idx"] for made in many)
        assert chisquare([places[i] for i in range(20)]).pvalue > 1e-4


def test_only_names_with_articles_have_aliases(many):
    for made in many:
        assert all(re.fullmatch(rf"the (river )?{made['answer']}", alias) for alias in made["answer_aliases"])
    assert 0 < sum(bool(made["answer_aliases"]) for made in many) < 0.25 * len(many)


def test_there_are_ten_million_people_and_many_of_everything_else():
    given_names, family_names = (
        {a + b + c for a in STARTS for b in middles for c in ENDINGS[shape]}
        for shape, middles in (("woman", MIDDLES), ("family", INNER))
    )
    assert len(given_names) * len(family_names) > 10**7
    assert all(len(set(common)) >= 40 for common in COMMON.values())


@pytest.mark.slow
def test_relations_are_worded_well():
    assert len(RELATIONS) == len({relation.name for relation in RELATIONS}) >= 12
    asked = {relation.name for seed in range(3000) for relation in (f.relation for f in make_world(seed, DEFAULT)[1])}
    assert asked == {relation.name for relation in RELATIONS}
    for relation in RELATIONS:
        assert len(set(relation.sentences)) >= 3
        assert relation.phrase.endswith("{s}")
        assert relation.ask.endswith("?")
        for sentence in relation.sentences:
            shortest = len(sentence.format(s="One" if relation.subject == "person" else "the thing", o="One").split())
            assert 9 <= shortest <= 16, sentence
            assert sentence.endswith(".")
            assert relation.subject not in sentence, "the novel is a novel"
            assert {"{s}", "{o}"} <= set(re.findall(r"\{.\}", sentence))


def test_colors_state_nothing():
    assert set(ATLAS["colors"]) == set(OF) == set(KINDS)
    for sentence in itertools.chain(*ATLAS["colors"].values()):
        assert re.findall(r"\{.\}", sentence) == ["{s}"]
        assert 9 <= len(sentence.split()) <= 16, sentence


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"paragraphs": 5}, "paragraphs = 5 should be from 6"),
        ({"hops": (2,), "paragraphs": 3}, "paragraphs = 3 should be from 4"),
        ({"paragraphs": 51}, "paragraphs = 51"),
        ({"hops": ()}, "hops"),
        ({"hops": (1, 2)}, "hops"),
        ({"hops": (5,)}, "hops"),
        ({"hops": (2, 2)}, "hops"),
    ],
)
def test_options_out_of_range_name_their_key(options, key):
    with pytest.raises(ConfigError, match=re.escape(key)):
        AtlasOptions(**options)
