"""A question's documents: what the tools search, and how the model is shown them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """One paragraph that a question may be answered from."""

    id: str
    """What the model calls it by."""
    title: str
    """What it is about."""
    text: str
    """Its body."""
    supporting: bool
    """Whether the answer needs it."""

    def shown(self) -> str:
        """As a tool's result shows it."""
        return f"Document ID: {self.id}\n# {self.title}\n{self.text}"
