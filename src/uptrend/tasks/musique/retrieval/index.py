"""What a retriever is: it makes a question's documents ready to be searched."""

from collections.abc import Sequence
from typing import Protocol

from uptrend.tasks.musique.documents import Document


class Index(Protocol):
    """One question's documents, ready to be searched.

    It is shared by all rollouts of its group and holds no state of any of them.
    """

    async def search(self, query: str, count: int) -> list[int]:
        """The places of the best documents in the order given to the retriever, best first.

        At most `count`, no repeats; none for a blank query.
        """
        ...


class Retriever(Protocol):
    """One way of searching."""

    def index(self, documents: Sequence[Document]) -> Index:
        """Make a question's documents ready to be searched."""
        ...


def searchable(document: Document) -> str:
    """What of a document is searched: its title too, which often is the only place that names its subject."""
    return f"{document.title}\n{document.text}"
