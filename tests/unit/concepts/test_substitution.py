import numpy as np
import pytest

from sparse_core.concepts import Concept, find_spans, value_substitutions
from sparse_core.errors import SparseError

TEXTS = [
    "Patient has asthma since childhood.",
    "No complaints today.",
    "DIABETES was ruled out.",
    "Mother had asthma and diabetes.",
]
CONCEPT = Concept("diagnosis", terms=("asthma", "diabetes", "gout"))


def substituted(**options):
    options = {"values": CONCEPT.terms, "n_contexts": 2, "generator": np.random.default_rng(0)} | options
    return value_substitutions(TEXTS, find_spans(TEXTS, CONCEPT), **options)


def test_every_context_is_paired_with_every_value_once():
    made = substituted()
    assert (made.n_contexts, made.n_values, len(made.texts)) == (2, 3, 6)
    for start in (0, 3):
        found = [value for text in made.texts[start : start + 3] for value in CONCEPT.terms if value in text.lower()]
        assert sorted(found) == sorted(CONCEPT.terms)


def test_contexts_with_a_single_span_are_preferred():
    assert not any("Mother" in text for text in substituted().texts)
    assert any("Mother" in text for text in substituted(n_contexts=3).texts)


def test_values_take_the_case_of_the_one_they_replace():
    made = substituted()
    assert {text.split()[0] for text in made.texts if "ruled out" in text} == {"ASTHMA", "DIABETES", "GOUT"}


def test_values_found_in_the_corpus_join_the_listed_ones_up_to_the_limit():
    assert substituted(values=()).n_values == 2
    assert substituted(values=("Gout", "gout")).n_values == 3
    assert substituted(max_values=2).n_values == 2


def test_embeddings_are_arranged_by_context_and_value():
    made = substituted()
    shaped = made.shaped(np.arange(6.0)[:, None])
    assert shaped[:, :, 0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_corpus_without_the_concept_is_refused():
    with pytest.raises(SparseError, match="No text holds the concept"):
        value_substitutions(["Nothing here."], [[]], generator=np.random.default_rng(0))


def test_the_representation_shows_no_text():
    assert "asthma" not in repr(substituted())
