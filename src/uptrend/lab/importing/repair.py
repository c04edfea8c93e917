"""UTF-8 that was read as Windows-1252 and written again: â†’ back to →."""

import re

BACK = {bytes([byte]).decode("cp1252", "ignore") or chr(byte): byte for byte in range(0x80, 0x100)}
"""Which byte a character was; the five that Windows-1252 leaves open came through as control characters."""

LOST = {"âŒ": "❌"}
"""Where one of those five was dropped on the way, as editors do; only what can't be anything else."""


def _characters(first: int, last: int) -> str:
    return "[" + "".join(re.escape(character) for character, byte in BACK.items() if first <= byte <= last) + "]"


_REST = _characters(0x80, 0xBF)
_TORN = re.compile(
    f"{_characters(0xC2, 0xDF)}{_REST}|{_characters(0xE0, 0xEF)}{_REST}{{2}}|{_characters(0xF0, 0xF4)}{_REST}{{3}}"
)


def repair(text: str) -> tuple[str, int]:
    """The text with such sequences made whole again, and how many there were; what is no such sequence stays."""
    count = 0

    def whole(match: re.Match[str]) -> str:
        nonlocal count
        try:
            fixed = bytes(BACK[character] for character in match[0]).decode("utf-8")
        except UnicodeDecodeError:
            return match[0]
        count += 1
        return fixed

    text = _TORN.sub(whole, text)
    for torn, fixed in LOST.items():
        count += text.count(torn)
        text = text.replace(torn, fixed)
    return text, count
