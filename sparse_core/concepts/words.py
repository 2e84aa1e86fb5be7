"""The shape of written words: where one begins and ends, and when two are the same.

A word is a maximal run of letters, combining marks, digits and underscores; invisible characters
between two of them (soft hyphen, joiners) belong to it. Apostrophes, hyphens and whitespace separate
words. Working on whole words of the *original* text keeps offsets valid whatever folding does to lengths.

Scripts written without spaces (Chinese, Japanese, Thai) show no word boundaries: there a run of
characters is one word, and concepts are better given as patterns, an entity model or annotations.
"""

from __future__ import annotations

from functools import lru_cache
from unicodedata import normalize

import regex

APOSTROPHES = "'’‘ʼʻ`´′＇"
_LETTER = r"[[\p{L}\p{M}\p{N}_]--[ʼʻ]]"
_INVISIBLE = r"[\p{Default_Ignorable_Code_Point}--\u200b]"
_SPACE = r"[\s\u200b]"
_DASH = r"[\p{Pd}\u2212\u00ad]"


def compile_shape(template: str, flags: int = 0) -> regex.Pattern:
    """Compile an expression written with ``<W>`` letter, ``<A>`` apostrophe, ``<D>`` dash, ``<S>`` space.

    Parameters
    ----------
    template : str
        Expression in the syntax of the `regex` package (version 1: set operations allowed).
    flags : int
        Flags of the `regex` package.

    Returns
    -------
    regex.Pattern
    """
    for name, group in (("<W>", _LETTER), ("<A>", f"[{APOSTROPHES}]"), ("<D>", _DASH), ("<S>", _SPACE)):
        template = template.replace(name, group)
    return regex.compile(template, flags | regex.VERSION1)


WORD = compile_shape(rf"<W>+(?:{_INVISIBLE}+<W>+)*")
_APOSTROPHE_WORD = compile_shape(rf"{WORD.pattern}(?:<A>{WORD.pattern})*")
_POSSESSIVE_ENDING = compile_shape(r"(?:<A>s|(?<=[sxz])<A>)\Z", regex.IGNORECASE)
_IGNORABLE = compile_shape(r"\p{Default_Ignorable_Code_Point}+")
_LOOSE_GAP = compile_shape(r"<S>*<D>?<S>*")
_LITERAL_FOLDS = (
    (compile_shape(r"<S>+"), " "),
    (compile_shape(r"<D>"), "-"),
    (compile_shape(r"<A>"), "'"),
)


@lru_cache(maxsize=100_000)
def fold_word(word: str) -> str:
    """Fold a word so that spellings a reader takes for the same compare equal.

    Compatibility caseless matching (Unicode 16, section 3.13, D146), composed (NFKC), without invisible
    characters, and with the Turkish dotted and dotless i taken for one letter.

    Parameters
    ----------
    word : str
        A word in any normalization form.

    Returns
    -------
    str
        The folded word; empty if the word is all invisible.
    """
    if word.isascii():
        return word.lower()
    folded = normalize("NFD", _IGNORABLE.sub("", word))
    for _ in range(2):
        folded = normalize("NFKD", folded.casefold())
    return normalize("NFKC", folded.replace("i\u0307", "i").replace("ı", "i"))


def fold_gap(gap: str) -> str:
    """Fold the text between two words of a term: whitespace and at most one dash fold to one space.

    Parameters
    ----------
    gap : str
        What stands between two words.

    Returns
    -------
    str
        ``" "`` for whitespace, a dash or both; otherwise the punctuation with whitespace, dashes and
        apostrophes unified.
    """
    if gap == " ":
        return gap
    gap = _IGNORABLE.sub(lambda match: " " if "\u200b" in match.group() else "", gap)
    if gap and _LOOSE_GAP.fullmatch(gap):
        return " "
    return fold_edge(gap)


def fold_edge(edge: str) -> str:
    """Fold the punctuation at the edge of a term, as in ``.NET`` or ``C++``.

    Parameters
    ----------
    edge : str
        Punctuation.

    Returns
    -------
    str
        The same with runs of whitespace, dashes and apostrophes unified.
    """
    for pattern, replacement in _LITERAL_FOLDS:
        edge = pattern.sub(replacement, edge)
    return edge


def strip_possessive(word: str) -> str:
    """Take the possessive ending off: ``Sophy's`` and ``Sophy’s`` become ``Sophy``, ``James'`` ``James``.

    Parameters
    ----------
    word : str
        A word or a name of several words.

    Returns
    -------
    str
    """
    return _POSSESSIVE_ENDING.sub("", word)


def word_tokens(text: str) -> tuple[str, ...]:
    """Case-folded words of a text, possessive endings taken off.

    Parameters
    ----------
    text : str
        Any text.

    Returns
    -------
    tuple of str
        In order of appearance, with repetitions. Hyphenated names give one token a part; an apostrophe
        inside a word stays, as ``'``.
    """
    return tuple(token for token, _, _ in placed_words(text))


def placed_words(text: str) -> list[tuple[str, int, int]]:
    """The words of `word_tokens`, with the offsets at which each stands, possessive ending included.

    Parameters
    ----------
    text : str

    Returns
    -------
    list of (token, start, end)
    """
    found = []
    for match in _APOSTROPHE_WORD.finditer(text):
        word = strip_possessive(match.group())
        token = "'".join(fold_word(part) for part in fold_edge(word).split("'"))
        if has_word(token):
            found.append((token, *match.span()))
    return found


def has_word(text: str) -> bool:
    """Whether a text holds a letter or a digit.

    Parameters
    ----------
    text : str
        Any text.

    Returns
    -------
    bool
    """
    return any(character.isalnum() for character in text)
