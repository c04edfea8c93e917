"""Workers that answer requests: what is left of one when it ends, and calls from several
threads.
"""

import os
import threading
from pathlib import Path

import pytest

from uptrend.records.worker_process import WorkerDied, WorkerProcess

WORKER = """
from uptrend.records.worker_process import answer_requests

answer_requests(lambda request: {"result": request, "last": True})
"""


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what Linux lists")
def test_workers_that_ended_leave_no_pipes_open() -> None:
    worker = WorkerProcess("uptrend.there_is_no_such_module")
    counts = []
    for _ in range(5):
        with pytest.raises(WorkerDied):
            worker.call([], 5)
        counts.append(open_files())
    assert counts[-1] <= counts[0]


def test_threads_get_their_answers_from_workers_that_end_after_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_after_each.py").write_text(WORKER)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    worker = WorkerProcess("ends_after_each")
    answers: list[int] = []

    def ask(number: int) -> None:
        answers.append(worker.call(number, 60)["result"])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [0, 1, 2, 3]


ENDS_ONCE = """
import os
from pathlib import Path
from uptrend.records.worker_process import answer_requests

def work(request):
    if request == 2 and not Path("ended").exists():
        Path("ended").touch()
        os._exit(1)
    if request == 3:
        os._exit(1)
    return {"result": request, "worker": os.getpid()}

answer_requests(work)
"""


def test_a_request_to_a_worker_that_has_just_ended_goes_to_another_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ends_once.py").write_text(ENDS_ONCE)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.chdir(tmp_path)
    worker = WorkerProcess("ends_once")
    first = worker.call(1, 60)
    second = worker.call(2, 60)
    assert second["result"] == 2
    assert second["worker"] != first["worker"]
    with pytest.raises(WorkerDied):  # what ends every worker is not asked for ever
        worker.call(3, 60)
    assert worker.call(4, 60)["result"] == 4
