"""The worker that calls reward functions, which only a process can be stopped at. No torch, unless
a function's module imports it.

python -P -m uptrend.tasks.function_worker
"""

import os
import sys
import time
from typing import Any

from uptrend.records import TasksetError
from uptrend.records.worker_process import answer_requests, end_with_caller
from uptrend.tasks.functions import (
    TRL_COLUMNS,
    FunctionFailed,
    call_function,
    decode_arguments,
    load_function,
)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Import a function, or call it and return its rewards and the seconds that it took."""
    sys.path[:] = request["path"]
    os.chdir(request["folder"])
    try:
        function = load_function(request["function"])
        if "arguments" not in request:
            return {}
        arguments = decode_arguments(request["arguments"])
        for name in request["trl"]:
            arguments[name] = TRL_COLUMNS[name]
        started = time.perf_counter()
        values = call_function(function, request["function"], arguments, request["count"])
        return {"values": values, "seconds": time.perf_counter() - started}
    except FunctionFailed as error:
        return {"failed": str(error)}
    except TasksetError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    end_with_caller()
    answer_requests(answer)
