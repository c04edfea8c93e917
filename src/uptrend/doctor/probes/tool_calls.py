"""Whether a turn with several tool calls, and several results, can be rendered."""

from uptrend.doctor.probes.bench import CRITICAL, HIGH, NOTE, Bench
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence, Message
from uptrend.rollout.calls import example_call
from uptrend.rollout.render import Renderer


def probe(bench: Bench) -> Result:
    """Render two calls in a turn, read them back, and render two results."""
    if not bench.tools:
        return not_asked("no tools")
    stage = bench.pool.stages[0]
    renderer = Renderer(bench.policy.tokenizer, bench.policy.stop_ids, stage.taskset.chat, bench.config.sampling.trim)
    call = example_call(bench.tools[0])
    try:
        results = len(renderer.later([], [Message("tool", "one"), Message("tool", "two")], bench.tools))
    except Exception as error:  # templates raise what they like
        summary = "The chat template can't show two tool results after a turn: such a rollout would fail."
        figure = f"two results in a turn fail: {error}"
        return told(figure, [bench.found("tool.multi-call", CRITICAL, HIGH, summary, Evidence(str(error)))])
    try:
        back = renderer.read(renderer.write(Message("assistant", "", (call, call))))
    except Exception as error:
        summary = "The model's format holds one tool call a turn; a script that makes two is refused."
        figure = f"two results are {results} tokens; two calls are refused: {error}"
        return told(figure, [bench.found("tool.multi-call", NOTE, HIGH, summary, Evidence(str(error)))])
    figure = f"two calls are read back as {len(back.calls)}, two results are {results} tokens"
    if len(back.calls) == 2:
        return told(figure)
    summary = f"Two tool calls in a turn are read back as {len(back.calls)}."
    return told(figure, [bench.found("tool.multi-call", NOTE, HIGH, summary, Evidence(figure, len(back.calls)))])
