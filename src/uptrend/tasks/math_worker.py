"""The worker that compares mathematics by math-verify, which only a process can be stopped at. No
torch.

python -P -m uptrend.tasks.math_worker
"""

import contextlib
import resource
from typing import Any

from math_verify import parse, verify

from uptrend.records.worker_process import answer_requests

# Bytes of memory that an expression may take: 10^(10^10), written out, takes all there is.
MEMORY = 4 << 30


def compare(texts: tuple[str, str]) -> dict[str, Any]:
    """Return whether an answer equals the gold one, or the error."""
    gold, answer = texts
    try:
        # This process has a limit of its own: theirs interrupt Python alone, and take what is late
        # for wrong.
        read_gold, read_answer = (parse(text, parsing_timeout=None) for text in (gold, answer))
        return {"equal": bool(verify(read_gold, read_answer, timeout_seconds=None))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    with contextlib.suppress(OSError, ValueError):  # macOS knows no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    answer_requests(compare)
