"""What a concept accepts, shows and is named by."""

import pickle

import pytest

from sparse_core.concepts import Concept, concept_fingerprint
from sparse_core.errors import SparseError

SECRET = "Sophy Santino"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"terms": [" "]},
        {"terms": ["--"]},
        {"terms": SECRET},
        {"terms": [SECRET, None]},
        {"terms": 3},
        {"patterns": [f"({SECRET}"]},
        {"patterns": [f"{SECRET}{{9,1}}"]},
        {"patterns": [""]},
        {"entity_types": "PERSON"},
        {"entity_model": ""},
    ],
)
def test_an_unusable_concept_is_refused_by_position_and_not_by_content(fields):
    with pytest.raises(SparseError, match="'people'") as caught:
        Concept("people", **fields)
    assert "Sophy" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_a_concept_needs_a_name(name):
    with pytest.raises(SparseError, match="name"):
        Concept(name, terms=["x"])


def test_lists_become_tuples_so_that_concepts_hash_and_compare():
    concept = Concept("people", terms=["Ann", "Bob"], patterns=[r"\d+"], entity_types=["PERSON"])
    assert concept.terms == ("Ann", "Bob")
    assert hash(concept) == hash(pickle.loads(pickle.dumps(concept)))


def test_repr_shows_counts_and_no_terms_or_patterns():
    concept = Concept("people", terms=[SECRET], patterns=["Sant[io]+no"], entity_types=["PERSON"])
    for shown in (repr(concept), str(concept), f"{[concept]}"):
        assert "Sophy" not in shown and "Sant" not in shown
        assert "1 terms, 1 patterns" in shown and "PERSON" in shown


def test_fingerprint_ignores_name_order_case_and_unicode_form():
    one = Concept("a", terms=["José", "Jean-Luc"], patterns=["x", "y"])
    two = Concept("b", terms=["jean luc", "JOSE\u0301", "José"], patterns=["y", "x"])
    assert concept_fingerprint(one, salt=b"salt") == concept_fingerprint(two, salt="salt")


def test_fingerprint_tells_contents_and_salts_apart():
    concepts = [
        Concept("c", terms=["x"]),
        Concept("c", terms=["x", "y"]),
        Concept("c", terms=["x y"]),
        Concept("c", patterns=["x"]),
        Concept("c", entity_types=["x"]),
        Concept("c", entity_types=["x"], entity_model="other"),
    ]
    prints = [concept_fingerprint(concept, salt=salt) for concept in concepts for salt in ("a", "b")]
    assert len(set(prints)) == len(prints)
    assert all(len(bytes.fromhex(fingerprint)) == 32 for fingerprint in prints)


@pytest.mark.parametrize("salt", [b"", "", None, 3])
def test_fingerprint_needs_a_salt(salt):
    with pytest.raises(SparseError, match="salt"):
        concept_fingerprint(Concept("c", terms=["x"]), salt=salt)
