"""Sandboxes against hostile commands: contained, named, and nothing is left over."""

import asyncio

import pytest

from uptrend.tasks.sandbox import BACKENDS, Bounds, FileProblem


@pytest.mark.needs_package("bubblewrap")
@pytest.mark.parametrize("name", ["bubblewrap", "process"])
def test_a_workspace_keeps_its_files_and_its_folder(name: str) -> None:
    async def play() -> None:
        workspace = await BACKENDS[name].open({"notes/a.txt": b"hello"}, Bounds())
        try:
            assert (await workspace.run("cd notes && cat a.txt && exit 3")).code == 3
            assert workspace.cwd == "/workspace/notes"
            await workspace.write("b.txt", b"more")
            assert await workspace.read("/workspace/notes/b.txt") == b"more"
            assert await workspace.listing() == [("notes/a.txt", 5), ("notes/b.txt", 4)]
            with pytest.raises(FileProblem, match="No such file"):
                await workspace.read("c.txt")
            talk = await workspace.start("while read line; do echo got $line; done")
            assert await talk.ask("one") == "got one"
            await talk.close()
        finally:
            await workspace.close()

    asyncio.run(play())
