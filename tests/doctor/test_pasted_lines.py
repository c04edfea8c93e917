"""Single lines of a log: what one proves is named first, what is healthy gets no warning, and what
only looks like a fault gets an answer that no finding contradicts.
"""

import json
from typing import Any

import pytest

from uptrend.doctor.normal import SIGNS
from uptrend.records import Report, Severity
from uptrend.runner import reports_of_text

NAN = float("nan")
# A healthy line of TRL with a KL penalty, and one of verl.
LINE: dict[str, Any] = {
    "loss": 0.0, "grad_norm": 0.41, "learning_rate": 9.4e-07, "reward": 0.4375, "reward_std": 0.3162,
    "frac_reward_zero_std": 0.25, "completions/mean_length": 311.53125, "completions/min_length": 90.0,
    "completions/max_length": 840.0, "completions/clipped_ratio": 0.0625, "kl": 0.000713,
    "entropy": 0.54321, "clip_ratio/region_mean": 0.0, "epoch": 0.1234567,
}  # fmt: skip
VERL = (
    "step:{step} - actor/entropy:0.3125 - actor/pg_clipfrac:0.0 - actor/ppo_kl:0.0 -"
    " actor/pg_loss:-0.0123 - actor/kl_loss:0.00112 - actor/grad_norm:{norm} - actor/lr:1e-06 -"
    " critic/score/mean:{score} - critic/score/max:{top} - critic/score/min:0.0 -"
    " response_length/mean:{length} - response_length/max:1024.0 - response_length/min:{least} -"
    " response_length/clip_ratio:{cut}\n"
)

TRUNCATED, NO_STOP = "context.completion-truncated", "sampling.no-stop"
BOTTOM, TOP = "advantage.dead-groups-low", "advantage.dead-groups-high"
FROZEN, SCHEDULE, NONFINITE = "optimizer.frozen", "optimizer.schedule", "run.nonfinite"
MISMATCH, SIGN, RUNAWAY = "precision.mismatch", "kl.sign", "kl.runaway"

NOTHING_EARNED = {"reward": 0.0, "reward_std": 0.0, "frac_reward_zero_std": 1.0, "grad_norm": 0.0}
GAP = "sampling/sampling_logp_difference/mean"


def all_cut(tokens: float) -> dict[str, Any]:
    lengths = {f"completions/{name}_length": tokens for name in ("mean", "min", "max")}
    return {**NOTHING_EARNED, **lengths, "completions/clipped_ratio": 1.0}


def line(**changes: Any) -> str:
    row = LINE | changes
    return f"{ {name: value for name, value in row.items() if value is not None} }\n"


def verl(step: int = 3, norm: float = 0.12, **values: float) -> str:
    usual = {"score": 0.4, "top": 1.0, "length": 301.5, "least": 40.0, "cut": 0.02}
    return VERL.format(step=step, norm=norm, **usual | values)


FAULTS = {
    "all cut at a limit below a solution": (line(**all_cut(200.0)), TRUNCATED),
    "all cut where some would end": (line(**all_cut(2048.0)), NO_STOP),
    "all cut where a terse answer fits": (line(**all_cut(32.0)), NO_STOP),
    "all cut, without the deviation": (
        line(**all_cut(128.0) | {"reward_std": None, "frac_reward_zero_std": None}),
        TRUNCATED,
    ),
    "cut by lengths alone": (
        line(**all_cut(128.0) | {"completions/clipped_ratio": None}),
        TRUNCATED,
    ),
    "verl, all cut": (verl(norm=0.0, score=0.0, top=0.0, length=1024.0, least=1024.0, cut=1.0), NO_STOP),
    "no group alive": (line(**NOTHING_EARNED), BOTTOM),
    "no group alive at an unknown height": (line(**NOTHING_EARNED | {"reward": 3.0}), BOTTOM),
    "no group alive, and every component earned": (
        line(**NOTHING_EARNED | {"reward": 4.0, "rewards/a/mean": 3.0, "rewards/b/mean": 1.0}),
        TOP,
    ),
    "no group alive, and one component not earned": (
        line(**NOTHING_EARNED | {"reward": 1.5, "rewards/a/mean": -2.0, "rewards/b/mean": 3.5}),
        BOTTOM,
    ),
    "gradient 0 with live groups": (line(grad_norm=0.0, kl=0.0), FROZEN),
    "gradient 0 with live groups, twice": (line(grad_norm=0.0) + line(grad_norm=0.0), FROZEN),
    "learning rate 0": (3 * line(learning_rate=0.0), SCHEDULE),
    "a gradient that is no number": (line(grad_norm=NAN), NONFINITE),
    "an infinite loss": (line(loss=float("inf")), NONFINITE),
    "a gap that rounding does not explain": (line(**{GAP: 0.4}), MISMATCH),
    "a negative k3": (line(kl=-0.02), SIGN),
    "a KL below any estimator's noise": ("step,reward,kl\n1,0.2,-0.3\n2,0.3,-0.4\n", SIGN),
    "a policy that is lost": (line(kl=60.0), RUNAWAY),
}  # fmt: skip

HEALTHY = {
    "a line": (line(), {"loss-zero", "clip-zero", "some-groups-dead"}),
    "without a gradient": (line(grad_norm=None), {"loss-zero-without-gradient"}),
    "loss below 0": (line(loss=-0.0312), {"loss-negative"}),
    "the first line": (line(kl=0.0, learning_rate=0.0), {"kl-zero", "rate-zero"}),
    "a line with a dead step between": (line() + line(**NOTHING_EARNED) + line(), {"clip-zero"}),
    "all right at the end": (line(reward=1.0, reward_std=0.0, frac_reward_zero_std=1.0, grad_norm=0.0), set()),
    "some are cut": (line(**{"completions/clipped_ratio": 0.2}), set()),
    "all cut and paid": (line(**{"completions/clipped_ratio": 1.0}), set()),
    "verl": (verl(), {"ratio-one", "clip-zero", "loss-negative"}),
    "a gradient that was rounded to 0": (
        "step:9 - actor/grad_norm:0.000 - actor/lr:0.000 - actor/kl_loss:0.024 - actor/entropy:0.317"
        " - critic/score/mean:0.906 - critic/score/max:1.125 - critic/score/min:0.125"
        " - response_length/mean:330.437 - prompt_length/mean:362.969 - timing_s/gen:29.641"
        " - timing_s/ref:6.307\n",
        set(),
    ),
    "spread that falls as the reward rises": (
        "".join(line(reward=0.2 + 0.1 * i, reward_std=0.4 - 0.05 * i) for i in range(5)),
        {"spread-falls"},
    ),
    "a KL that grows slowly": ("".join(line(kl=0.0004 * i) for i in range(4)), {"kl-grows"}),
    "names of one's own": ("reward: 0.31, grad_norm: 0.2, kl: 0.001\n", set()),
}  # fmt: skip


def report_of(text: str) -> Report:
    [report] = reports_of_text(text.encode())
    return report


def alarm_ids(report: Report) -> list[str]:
    return [finding.id for finding in report.findings if finding.severity is not Severity.NOTE]


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_line_proves_is_named_first(name: str) -> None:
    text, cause = FAULTS[name]
    report = report_of(text)
    assert alarm_ids(report)[:1] == [cause]
    assert "too" not in report.trend.headline
    assert "fault shows in" in report.trend.headline


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_lines_get_answers_and_no_warning(name: str) -> None:
    text, signs = HEALTHY[name]
    report = report_of(text)
    assert alarm_ids(report) == []
    assert signs <= {sign.id for sign in report.normal}
    assert "no fault" in report.trend.headline
    assert "No fault shows in" in report.trend.sentence
    assert report.differential is None


def test_no_answer_contradicts_a_finding() -> None:
    loss, kl, dead = (
        {"loss-zero", "loss-zero-without-gradient"},
        {"kl-grows", "kl-zero"},
        "some-groups-dead",
    )
    contradicted = {
        FROZEN: {*loss, *kl, "clip-zero", "ratio-one"},
        BOTTOM: {*loss, dead, "spread-falls"},
        SCHEDULE: {*loss, "rate-zero"},
        NONFINITE: {*loss, "loss-negative"},
        RUNAWAY: {*kl, "loss-negative"},
        SIGN: {*kl, "loss-negative"},
    }  # fmt: skip
    for text, cause in FAULTS.values():
        signs = {sign.id for sign in report_of(text).normal}
        assert not signs & contradicted.get(cause, set()), cause


def test_every_answer_is_given_somewhere_and_has_its_numbers() -> None:
    signs = [sign for text, _ in HEALTHY.values() for sign in report_of(text).normal]
    assert {sign.id for sign in signs} == SIGNS.keys()
    assert not any("{" in sign.text for sign in signs)
    text = next(sign.text for sign in signs if sign.id == "loss-zero")
    assert text.startswith("A loss of 0 is normal")
    assert "(0.41)" in text


def test_several_updates_per_batch_are_no_reason_for_a_ratio_of_one() -> None:
    several = "num_iterations: 4, beta: 0.01\n" + line()
    assert "clip-zero" not in {sign.id for sign in report_of(several).normal}


def test_a_kl_of_zero_is_evidence_where_it_was_computed() -> None:
    steps = range(1, 31)

    def log(beta: float, **changes: Any) -> str:
        rows = [
            LINE | {"step": step, "reward": 0.3 + 0.01 * (step % 5)} | changes for step in steps
        ]
        return json.dumps({"beta": beta, "log_history": rows})

    follows = report_of(log(0.04, kl=0.0))
    assert "kl.reference" in alarm_ids(follows)
    assert "exactly 0 at each of 30 points with beta 0.04" in follows.findings[0].summary
    uncomputed = report_of(log(0.0, kl=0.0))
    assert "kl.reference" not in alarm_ids(uncomputed)
    assert any("never computed" in note for note in uncomputed.notes)
    idle = report_of(log(0.0, kl=0.0, grad_norm=0.0))
    assert alarm_ids(idle)[0] == FROZEN
    assert any("The KL is 0 as well" in each.text for each in idle.findings[0].evidence)
    assert not any("never computed" in note for note in idle.notes)


def test_what_one_line_cannot_show_is_named_in_the_trainer_s_words() -> None:
    report = report_of(line(grad_norm=None, frac_reward_zero_std=None, reward_std=None))
    missing = " ".join(report.missing)
    assert "no gradient norm: grad_norm would show" in missing
    assert "no dead groups: frac_reward_zero_std would show" in missing


def test_a_kl_of_0_in_the_first_line_is_not_called_missing() -> None:
    [report] = reports_of_text(json.dumps({**LINE, "kl": 0.0}).encode())
    assert "kl-zero" in [sign.id for sign in report.normal]
    assert not [sentence for sentence in report.missing if sentence.startswith("no KL")]
    assert "no KL was logged" not in [lacking.needs for lacking in report.cannot_tell]
    [other] = reports_of_text(json.dumps({k: LINE[k] for k in LINE if k != "kl"}).encode())
    assert [sentence for sentence in other.missing if sentence.startswith("no KL")]
