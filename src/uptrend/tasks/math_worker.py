"""Worker process that compares mathematics by math-verify, which can be stopped only with its
process. It loads no torch.

python -P -m uptrend.tasks.math_worker
"""

import contextlib
import resource
from typing import Any

from math_verify import parse, verify

from uptrend.records.worker_process import answer_requests, end_with_caller

# Memory that an expression may take: 10^(10^10), written out, takes all there is.
MAX_MEMORY_BYTES = 4 << 30


def compare(texts: tuple[str, str]) -> dict[str, Any]:
    """Compare an answer with the gold one; return the outcome as `equal`, or the `error`."""
    gold, answer = texts
    try:
        # This process has a limit of its own: math-verify's interrupt Python alone, and count what
        # is late as wrong.
        parsed_gold = parse(gold, parsing_timeout=None)
        parsed_answer = parse(answer, parsing_timeout=None)
        return {"equal": bool(verify(parsed_gold, parsed_answer, timeout_seconds=None))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    end_with_caller()
    with contextlib.suppress(OSError, ValueError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    answer_requests(compare)
