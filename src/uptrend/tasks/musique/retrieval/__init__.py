"""Ways of searching a question's documents: by an oracle, by words, by meaning, and by both.

Nothing outside the standard library and numpy is loaded before a retriever that needs it is made.
"""

from typing import Literal, assert_never

from uptrend.tasks.musique.retrieval.golden import Golden
from uptrend.tasks.musique.retrieval.hybrid import Hybrid
from uptrend.tasks.musique.retrieval.index import Index, Retriever
from uptrend.tasks.musique.retrieval.lexical import Lexical
from uptrend.tasks.musique.retrieval.semantic import Semantic
from uptrend.tasks.musique.retrieval.shelf import Shelf

__all__ = ["Index", "Name", "Retriever", "Shelf", "retriever"]

Name = Literal["golden", "lexical", "semantic", "hybrid"]
"""What recipes call the retrievers."""


def retriever(name: Name, embedder: str = "minilm") -> Retriever:
    """The retriever of that name; `embedder` matters to those that search by meaning."""
    match name:
        case "golden":
            return Golden()
        case "lexical":
            return Lexical()
        case "semantic":
            return Semantic(embedder)
        case "hybrid":
            return Hybrid(Lexical(), Semantic(embedder))
        case _:
            assert_never(name)
