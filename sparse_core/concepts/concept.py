"""What a concept is: a named set of terms, patterns or entity types."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import regex

from sparse_core.concepts.words import WORD, fold_edge, fold_gap, fold_word, has_word
from sparse_core.errors import SparseError

DEFAULT_ENTITY_MODEL = "en_core_web_sm"
EVERY_ENTITY_TYPE = "*"


@dataclass(frozen=True, repr=False)
class Concept:
    """What the user wants hidden. Its representation shows counts, never terms or patterns.

    Attributes
    ----------
    name : str
        Public name; appears in artifacts, messages and reports.
    terms : tuple of str
        Words, or names of several words, matched as whole words whatever the case, hyphenation,
        Unicode form and whitespace between words.
    patterns : tuple of str
        Regular expressions in the syntax of the `regex` package, applied to the original text as they
        are written (case-sensitive unless they say ``(?i)``).
    entity_types : tuple of str
        Labels of an entity model or of annotated spans, compared without case; ``"*"`` takes every label.
    entity_model : str or None
        Name or path of an installed spaCy model. If None, entity types use `DEFAULT_ENTITY_MODEL`.

    Raises
    ------
    SparseError
        If nothing is given to look for, a term holds no letter or digit, a pattern is not a regular
        expression, or a field has the wrong type. Terms and patterns are named by position.
    """

    name: str
    terms: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    entity_types: tuple[str, ...] = ()
    entity_model: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise SparseError("A concept needs a name: a non-empty string.")
        for field in ("terms", "patterns", "entity_types"):
            object.__setattr__(self, field, self._strings(field))
        if self.entity_model is not None and (not isinstance(self.entity_model, str) or not self.entity_model.strip()):
            raise SparseError(f"Concept {self.name!r}: entity_model must be a spaCy model's name or path.")
        if not (self.terms or self.patterns or self.uses_entities):
            raise SparseError(
                f"Concept {self.name!r} is empty: give terms, patterns, entity_types or an entity_model "
                f"(entity_types=({EVERY_ENTITY_TYPE!r},) takes every annotated span)."
            )
        for position, term in enumerate(self.terms, start=1):
            if not has_word(term):
                raise SparseError(
                    f"Concept {self.name!r}: term {position} of {len(self.terms)} has no letter or digit; "
                    "remove it, or write it as a pattern."
                )
        for position, pattern in enumerate(self.patterns, start=1):
            self._check_pattern(position, pattern)

    @property
    def uses_entities(self) -> bool:
        """Whether the concept asks for entities, from a model or from annotations."""
        return bool(self.entity_types or self.entity_model)

    def __repr__(self) -> str:
        return (
            f"Concept(name={self.name!r}, {len(self.terms)} terms, {len(self.patterns)} patterns, "
            f"entity_types={self.entity_types!r}, entity_model={self.entity_model!r})"
        )

    def _strings(self, field: str) -> tuple[str, ...]:
        value = getattr(self, field)
        value = () if value is None else value
        try:
            strings = None if isinstance(value, (str, bytes)) else tuple(value)
        except TypeError:
            strings = None
        if strings is None:
            raise SparseError(f"Concept {self.name!r}: {field} must be a list of strings.")
        for position, string in enumerate(strings, start=1):
            if not isinstance(string, str) or not string.strip():
                raise SparseError(
                    f"Concept {self.name!r}: {field} must be non-blank strings; number {position} of "
                    f"{len(strings)} is not."
                )
        return strings

    def _check_pattern(self, position: int, pattern: str) -> None:
        try:
            regex.compile(pattern)
            return
        except (regex.error, ValueError, OverflowError, RecursionError) as error:
            at = getattr(error, "pos", None)
        # Raised out here because the caught error, which would be chained, holds the pattern.
        where = "" if at is None else f" (at its character {at})"
        raise SparseError(
            f"Concept {self.name!r}: pattern {position} of {len(self.patterns)} is not a regular expression"
            f"{where}; correct it, in the syntax of the `regex` package."
        )


def split_term(term: str) -> tuple[str, tuple[str, ...], str]:
    """Split a term into the punctuation before it, its folded words and the punctuation after it.

    Parameters
    ----------
    term : str
        A term with at least one letter or digit.

    Returns
    -------
    lead : str
        Folded punctuation before the first word.
    words : tuple of str
        Folded words, each but the first with the folded gap that precedes it.
    trail : str
        Folded punctuation after the last word.
    """
    term = term.strip()
    words, end, start = [], 0, None
    for match in WORD.finditer(term):
        if not (folded := fold_word(match.group())):
            continue
        if start is None:
            start = match.start()
            words.append(folded)
        else:
            words.append(fold_gap(term[end : match.start()]) + folded)
        end = match.end()
    return fold_edge(term[:start]), tuple(words), fold_edge(term[end:])


def concept_fingerprint(concept: Concept, *, salt: bytes | str) -> str:
    """Name a concept's content without revealing it.

    Equal for two concepts that look for the same things, whatever their names and the order, case and
    Unicode form of their terms. scrypt (RFC 7914) makes guessing a short list slow, not impossible: keep
    the salt as secret as the terms where they are few and guessable.

    Parameters
    ----------
    concept : Concept
        The concept.
    salt : bytes or str
        Anything not empty; another salt gives an unrelated fingerprint.

    Returns
    -------
    str
        64 hexadecimal digits.

    Raises
    ------
    SparseError
        If the salt is empty or of another type.
    """
    if not isinstance(salt, (bytes, str)) or not salt:
        raise SparseError("concept_fingerprint needs a salt: non-empty bytes or string.")
    model = (concept.entity_model or DEFAULT_ENTITY_MODEL) if concept.uses_entities else None
    content = [
        sorted({split_term(term) for term in concept.terms}),
        sorted(set(concept.patterns)),
        sorted({entity_type.casefold() for entity_type in concept.entity_types}),
        model,
    ]
    password = json.dumps(["sparse concept 1", content]).encode()
    salt = salt.encode() if isinstance(salt, str) else salt
    return hashlib.scrypt(password, salt=salt, n=2**14, r=8, p=1, maxmem=2**26, dklen=32).hex()
