"""People's Markdown as a tree of known tags, from which a page is built without any HTML of
theirs.
"""

import re
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

TAGS = {
    "paragraph": "p",
    "bullet_list": "ul",
    "ordered_list": "ol",
    "list_item": "li",
    "blockquote": "blockquote",
    "strong": "strong",
    "em": "em",
    "s": "s",
    "table": "table",
    "thead": "thead",
    "tbody": "tbody",
    "tr": "tr",
    "th": "th",
    "td": "td",
    "hr": "hr",
    "hardbreak": "br",
}
COMMENT = re.compile(r"<!--.*?-->[ \t]*\n?", re.DOTALL)
Tree = str | list[Any]


def tree(text: str) -> list[Tree]:
    """Return Markdown as nodes: a text, or a list of a tag, attributes and nodes. HTML in it is
    text.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    return _children(SyntaxTreeNode(parser.parse(COMMENT.sub("", text))))


def _children(node: SyntaxTreeNode) -> list[Tree]:
    return [part for child in node.children for part in _node(child)]


def _node(node: SyntaxTreeNode) -> list[Tree]:
    kind = node.type
    if kind in ("text", "softbreak"):
        return [node.content if kind == "text" else "\n"]
    if kind == "code_inline":
        return [["code", {}, node.content]]
    if kind in ("fence", "code_block"):
        return [["pre", {}, ["code", {}, node.content]]]
    if kind == "heading":
        return [[node.tag, {}, *_children(node)]]
    if kind == "image":  # it would have to be fetched: its words stand for it
        return [f"[picture: {node.content}]"]
    if kind == "link":
        target = str(node.attrs.get("href", ""))
        if re.match(r"https?://", target, re.IGNORECASE):
            return [["a", {"href": target}, *_children(node)]]
        return _children(node)
    return [[TAGS[kind], {}, *_children(node)]] if kind in TAGS else _children(node)
