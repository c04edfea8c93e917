"""A second, lenient reader looks at what was counted wrong: a strict parser loses right answers."""

import re

from uptrend.doctor.probes.bench import MEDIUM, WARNING, Bench, name_of
from uptrend.doctor.probes.replay import last_words
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence, Rollout

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
FORMS = (
    r"\\boxed\{([^{}]*)\}",
    r"<answer>\s*(.*?)\s*</answer>",
    r"####\s*(\S+)",
    r"(?:answer|result)(?:\s+is|\s*[:=])\s*\**\s*([^\n.;]+)",
)
FEW = 0.02
"""Above this share of wrong rollouts, the parser loses answers."""


def probe(bench: Bench) -> Result:
    """Read wrong rollouts leniently."""
    wrong = [r for r in bench.rollouts if r.reward is not None and not r.reward.correct]
    if not wrong:
        return not_asked("no rollout was counted wrong")
    lost = [r for r in wrong if is_meant(last_words(r), r.answer)]
    share = len(lost) / len(wrong)
    figure = f"a lenient reader accepts {len(lost)} of {len(wrong)} rollouts that were counted wrong"
    if len(lost) < 3 or share <= FEW:
        return told(figure)
    summary = f"The parser rejects right answers: {share:.0%} of wrong rollouts hold the answer in another form."
    evidence = [
        Evidence(f"{last_words(r)[-80:]!r} for {r.answer!r}", share, rollout=name_of(r)) for r in _different(lost)[:3]
    ]
    return told(figure, [bench.found("reward.strict-parser", WARNING, MEDIUM, summary, *evidence)])


def is_meant(text: str, answer: str) -> bool:
    """Whether a text gives this answer and no other, whatever the form."""
    wanted = _plain(answer)
    if not wanted:
        return False
    candidates = {_plain(found) for form in FORMS for found in re.findall(form, text, re.IGNORECASE | re.DOTALL)}
    if candidates:
        return candidates == {wanted}
    numbers = {_plain(n) for n in NUMBER.findall(text)}
    return _plain(text) == wanted or (bool(NUMBER.fullmatch(answer)) and numbers == {wanted})


def _plain(text: str) -> str:
    """As two answers are compared: case, spaces, commas in numbers and what surrounds a word do not matter."""
    text = " ".join(text.lower().split()).strip(" .,:;!?*$`'\"()[]")
    return re.sub(r"(?<=\d),(?=\d{3})", "", text).removesuffix(".0")


def _different(rollouts: list[Rollout]) -> list[Rollout]:
    return list({last_words(r): r for r in rollouts}.values())
