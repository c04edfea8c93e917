"""People's Markdown as HTML for the page: everything escaped, nothing fetched, headings below the page's own."""

import posixpath
import re

from markdown_it import MarkdownIt
from markdown_it.token import Token

MARK = re.compile(r"^<!--.*?-->[ \t]*$\n?", re.MULTILINE | re.DOTALL)
"""A comment on a line of its own, such as the machine's marks."""
DEEPEST = 6


def to_html(text: str, below: int = 1, place: str = "") -> str:
    """Markdown as HTML; headings go `below` levels down, relative links start from the folder `place`."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    tokens = parser.parse(MARK.sub("", text))
    for token in tokens:
        _mend(token, below, place)
    return f'<div class="prose">{parser.renderer.render(tokens, parser.options, {})}</div>'


def _mend(token: Token, below: int, place: str) -> None:
    if token.type in ("heading_open", "heading_close"):
        token.tag = f"h{min(DEEPEST, int(token.tag[1]) + below)}"
    for child in token.children or ():
        if child.type == "link_open":
            child.attrSet("href", _reach(str(child.attrGet("href")), place))
    if token.children:
        token.children = [_alone(child) for child in token.children]


def _alone(token: Token) -> Token:
    """A picture would have to be fetched: its words stand for it."""
    return Token("text", "", 0, content=f"[picture: {token.content}]") if token.type == "image" else token


def _reach(link: str, place: str) -> str:
    is_relative = not re.match(r"[a-z][a-z0-9+.-]*:|[#/]", link, re.IGNORECASE)
    return posixpath.normpath(posixpath.join(place, link)) if is_relative and place else link


def plain_title(text: str) -> str:
    """The first heading of a Markdown text; empty where it has none."""
    match = re.search(r"^# +(.+?)[ \t#]*$", text, re.MULTILINE)
    return match[1] if match else ""


def without_title(text: str) -> str:
    """The same text without its first heading."""
    return re.sub(r"\A\s*# +.+\n?", "", text)


def opening(text: str) -> tuple[str, str]:
    """A text up to its second section, and the rest of it."""
    starts = [match.start() for match in re.finditer(r"^## ", text, re.MULTILINE)]
    at = starts[1] if len(starts) > 1 else len(text)
    return text[:at], text[at:]
