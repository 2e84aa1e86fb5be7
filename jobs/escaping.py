"""Names and texts from configurations and data, shown to people: on a terminal and in Markdown.

The HTML page escapes by itself (Jinja's autoescape). Every other place that shows a string it did not write goes
through here.
"""

from __future__ import annotations

import re
import unicodedata

# Joiners spell names in Persian and Indic scripts, and turn nothing around.
_HARMLESS = "\u200c\u200d"
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_MARKDOWN = re.compile(
    r"[\\`*<>&|~$]"  # code, emphasis, HTML, entities, cells, strikethrough, formulas
    r"|(?<!\w)_|_(?!\w)"  # emphasis; within a word an underscore is one
    r"|\](?=[(\[:])|!(?=\[)"  # links, definitions, images; intervals stay legible
    r"|:(?=//)|(?<=\w)@(?=\w)|(?i:(?<=www))\.|(?i:(?<=mailto)|(?<=xmpp)):"  # what renderers make links of by themselves
)


def for_terminal(text: str, *, lines: bool = False) -> str:
    """Text without anything that a terminal obeys: control, format and direction characters are spelled out.

    Parameters
    ----------
    text : str
    lines : bool
        Keep line breaks, where the text is several lines by intent.
    """
    return "".join(
        character
        if character in _HARMLESS or (lines and character == "\n") or unicodedata.category(character) not in _INVISIBLE
        else ascii(character)[1:-1]
        for character in text
    )


def for_markdown(text: str) -> str:
    """Text that Markdown shows as it is, on one line: no HTML, link, image, code or cell of its own."""
    return _MARKDOWN.sub(lambda found: f"\\{found[0]}", for_terminal(" ".join(text.split("\n"))))
