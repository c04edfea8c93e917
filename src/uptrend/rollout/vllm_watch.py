"""Ends a server whose supervisor is gone: one that was killed can't do so itself.

    python -P -m uptrend.rollout.vllm_watch

The supervisor names the server's process group in a request, and its end is the end of stdin.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from uptrend.records.worker_process import answer_requests

END_S = 20.0  # seconds that a server gets to end by itself, and to clean up


def end_group(leader: int, reap: Callable[[], object] = lambda: None) -> None:
    """End a process and its whole group: it gets time to do so itself. `reap` collects a caller's own child."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader, signal.SIGTERM)
    limit = time.monotonic() + END_S
    try:
        while time.monotonic() < limit:
            reap()  # until then it is still of the group
            os.killpg(leader, 0)
            time.sleep(0.1)
    except ProcessLookupError:  # nobody is left
        return
    finally:  # also where a second Ctrl-C ends the wait
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)


def main() -> None:
    """Wait for the end of the supervisor, then end the group that it named last."""
    group = 0

    def remember(request: Any) -> dict[str, Any]:
        nonlocal group
        group = int(request)
        return {}

    answer_requests(remember)
    if group:
        end_group(group)


if __name__ == "__main__":
    main()
