"""The reward against a computation by hand: parts, weights, bounds, and the switch for hops."""

import pytest

from uptrend.tasks.musique.rewards import RewardWeights, precision, read_reply, recall, reward, write_reply

GOLD = read_reply(write_reply("y", ("1", "2"), "Stanley"))
ALMOST = read_reply(write_reply("y", ("1", "9", "8"), "Stanley town"))


def test_everything_right_earns_one_for_any_number_of_hops() -> None:
    for hops in (2, 3, 4):
        ids = [str(i) for i in range(hops)]
        reply = read_reply(write_reply("y", tuple(ids), "Stanley"))
        got = reward(reply, ["Stanley"], ids, ids, RewardWeights(), scale=1.0, clean=1.0)
        assert (got.total, got.low, got.high, got.correct) == (1.0, 0.0, 1.0, True)


def test_a_weighted_mean_by_hand() -> None:
    got = reward(ALMOST, ["Stanley"], ["1", "2"], ["1", "2", "3", "4"], RewardWeights(), scale=1.0, clean=0.5)
    # exact 0, F1 2/3, retrieval recall 1, precision 1/2, citation recall 1/2, format 1; weights sum to 4.
    assert got.total == pytest.approx((0.9 * 2 / 3 + 1.0 + 0.4 * 0.5 + 0.6 * 0.5 + 0.1) / 4.0)
    assert not got.correct
    values = {part.name: part.value for part in got.parts}
    assert values["citation_precision"] == pytest.approx(1 / 3)
    assert values["clean_turns"] == 0.5
    assert sum(part.weight * part.value for part in got.parts) == pytest.approx(got.total)
    assert all(part.low <= part.value <= part.high for part in got.parts)


def test_scaled_by_hops_the_maximum_is_hops_over_two() -> None:
    whole = reward(GOLD, ["Stanley"], ["1", "2"], ["1", "2"], RewardWeights(), scale=2.0, clean=1.0)
    assert (whole.total, whole.high) == (2.0, 2.0)
    half = reward(ALMOST, ["Stanley"], ["1", "2"], ["1"], RewardWeights(), scale=1.5, clean=1.0)
    plain = reward(ALMOST, ["Stanley"], ["1", "2"], ["1"], RewardWeights(), scale=1.0, clean=1.0)
    assert half.total == pytest.approx(1.5 * plain.total)


def test_only_the_ratio_of_weights_matters() -> None:
    alone = RewardWeights(exact_match=7.0, f1=0, retrieval_recall=0, retrieval_precision=0, citation_recall=0, format=0)
    assert reward(GOLD, ["Stanley"], ["1", "2"], [], alone, scale=1.0, clean=1.0).total == 1.0


def test_silence_is_never_right() -> None:
    got = reward(read_reply("I do not know."), ["A"], ["1"], [], RewardWeights(), scale=1.0, clean=1.0)
    assert (got.total, got.correct) == (0.0, False)


def test_recall_and_precision() -> None:
    assert recall(["1", "3"], ["1", "2"]) == 0.5
    assert precision(["1", "3", "4"], ["1", "2"]) == pytest.approx(1 / 3)
    assert precision([], ["1"]) == 0.0
    assert recall(["1", "1"], ["1"]) == 1.0
