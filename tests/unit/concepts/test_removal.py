"""Texts without their concept."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_core.concepts import (
    REMOVALS,
    Concept,
    Span,
    SurrogatePool,
    check_prevalence,
    concept_tokens,
    contrast_pairs,
    find_spans,
    merge_spans,
    remove_spans,
)
from sparse_core.errors import SparseError

PII = Path(__file__).parents[4] / "shared/data/pii_presidio/pii_presidio.parquet"
SOPHY = Concept("people", terms=["Sophy", "James", "Jean-Luc", "İpek"])


def removed(text, concept=SOPHY, **options):
    (spans,) = find_spans([text], concept)
    return remove_spans(text, spans, **options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I met Sophy in Rome.", "I met in Rome."),
        ("Sophy went home.", "went home."),
        ("I met Sophy", "I met"),
        ("I met Sophy.", "I met."),
        ("Sophy's dog and Sophy’s cat", "dog and cat"),
        ("Sophy 's dog", "dog"),
        ("James' book is James'.", "book is."),
        ("Sophy'll go, İpek'in evi", "go, evi"),
        ("Sophy, come here.", "come here."),
        ("Well. Sophy, come. Sophy?", "Well. come."),
        ("Hello, Sophy!", "Hello!"),
        ("Hello, Sophy", "Hello"),
        ("Ann, Sophy, and Bob", "Ann, and Bob"),
        ("Ann, Sophy; Bob", "Ann, Bob"),
        ("Sophy, James and Jean Luc left", "and left"),
        ("He (Sophy) said [Sophy James] \"Sophy\" 'Sophy' “Sophy” so", "He said so"),
        ("He (Sophy, 5) and (Ann, Sophy) left", "He (5) and (Ann) left"),
        ('"Sophy is here," said Ann', '"is here," said Ann'),
        ("pre-Sophy era, Sophy-like, Ann-Sophy-Bob", "pre era, like, Ann Bob"),
        ("for l'Sophy now", "for now"),
        ("Sophy - a friend", "a friend"),
        ("a friend - Sophy", "a friend"),
        ("Name:\nSophy\n\nAge: 5", "Name:\nAge: 5"),
        ("one\nSophy, two Sophy\nthree", "one\ntwo\nthree"),
        ("To: Sophy", "To:"),
        ("  Sophy said  hi", "said  hi"),
        ("  hi Sophy ", "hi"),
        ("met Sophy .", "met ."),
        ("Sophy .5 and 3", ".5 and 3"),
        ("Sophy", ""),
        ("(Sophy).", ""),
        ("no concept  here ", "no concept  here "),
    ],
)
def test_delete_leaves_a_tidy_text(text, expected):
    assert removed(text) == expected


def test_delete_of_part_of_a_word_does_not_glue_its_rest():
    assert removed("abc123def", Concept("digits", patterns=[r"\d+"])) == "abc def"


def test_placeholder_puts_one_token_for_each_span_and_takes_the_possessive():
    text = "Sophy's dog, Jean-Luc and James' cat."
    assert removed(text, how="placeholder") == "[REDACTED] dog, [REDACTED] and [REDACTED] cat."
    assert removed(text, how="placeholder", placeholder="X") == "X dog, X and X cat."


def test_a_span_inside_what_looks_like_an_ending_is_replaced_once():
    assert remove_spans("Ann'sabcd x", [Span(0, 3), Span(4, 6)], how="placeholder", placeholder="#") == "## x"
    assert remove_spans("Ann'sabcd x", [Span(0, 3), Span(4, 6)]) == "x"
    generator = np.random.default_rng(0)
    assert remove_spans("ann", [Span(0, 3)], how="surrogate", surrogates=["'s"], generator=generator) == "'s"


def test_surrogate_keeps_the_possessive_and_the_case_style():
    options = {"how": "surrogate", "surrogates": ["Ann Lee"], "generator": np.random.default_rng(0)}
    assert removed("Sophy's SOPHY’S sophy", **options) == "Ann Lee's ANN LEE’S ann lee"
    options["surrogates"] = ["ann lee"]
    assert removed("Sophy", **options) == "Ann Lee"


def test_one_value_gets_one_surrogate_within_a_text():
    options = {"how": "surrogate", "surrogates": ["a", "b", "c", "d", "e", "f"]}
    text = "Sophy, sophy, SOPHY, Sophy"
    out = removed(text, generator=np.random.default_rng(1), **options)
    assert len({name.lower() for name in out.split(", ")}) == 1


def test_surrogates_are_drawn_uniformly_among_the_others_and_repeat_with_the_seed():
    pool = SurrogatePool.of(["Sophy", "SOPHY", "Ann", "Bob", "Cid"])
    text, spans = "Sophy", [Span(0, 5)]

    def draws(seed):
        generator = np.random.default_rng(seed)
        return [remove_spans(text, spans, how="surrogate", surrogates=pool, generator=generator) for _ in range(3000)]

    names, counts = np.unique(draws(0), return_counts=True)
    assert names.tolist() == ["Ann", "Bob", "Cid"]
    assert np.all(np.abs(counts - 1000) < 5 * np.sqrt(3000 * 2 / 9))
    assert draws(0) == draws(0) != draws(1)


def test_surrogates_that_share_a_word_are_taken_only_where_nothing_else_is_left():
    generator = np.random.default_rng(0)
    assert {SurrogatePool.of(["Sophy", "Ann"]).draw("Sophy Santino", generator) for _ in range(50)} == {"Ann"}
    assert SurrogatePool.of(["SOPHY SANTINO", "Sophy"]).draw("Sophy Santino", generator) == "Sophy"
    assert SurrogatePool.of(["Sophy"]).draw("SOPHY", generator) == "Sophy"


def test_a_pool_shows_no_values():
    assert repr(SurrogatePool.of(["Sophy", "sophy", "Ann"])) == "SurrogatePool(2 values)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "burn"}, "'burn'.*delete"),
        ({"how": "placeholder", "placeholder": " "}, "placeholder"),
        ({"how": "surrogate", "generator": np.random.default_rng(0)}, "surrogates"),
        ({"how": "surrogate", "surrogates": ["x"]}, "generator"),
        ({"how": "surrogate", "surrogates": [], "generator": np.random.default_rng(0)}, "no surrogates"),
        ({"how": "surrogate", "surrogates": [" "], "generator": np.random.default_rng(0)}, "Surrogate 1"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(SparseError, match=message):
        removed("Sophy", **options)


@pytest.mark.parametrize("span", [Span(0, 9), Span(-1, 2), Span(2, 2), Span(3, 1)])
@pytest.mark.parametrize("use", [remove_spans, concept_tokens])
def test_spans_of_another_text_are_refused(span, use):
    with pytest.raises(SparseError, match="does not lie in"):
        use("Sophy", [span])


def test_concept_tokens_are_distinct_folded_words_in_order_without_possessives():
    text = "Jean‑Luc O’Brien's JOSE\u0301 met José, Straße 5, İPEK, James'"
    tokens = concept_tokens(text, [Span(0, len(text))])
    assert tokens == ("jean", "luc", "o'brien", "josé", "met", "strasse", "5", "ipek", "james")
    assert concept_tokens("Sophy's dog", [Span(0, 5)]) == ("sophy",)


TEXTS = st.lists(
    st.sampled_from(["sophy", "Sophy", "JAMES", "ann", "x", "İpek", "'s", "’", " ", "  ", "\n", ",", ".", "-"])
    | st.sampled_from(["(", ")", '"', "'", "?", "—", "t", "s", "1"]),
    max_size=14,
).map("".join)


@settings(deadline=None)
@given(TEXTS)
def test_nothing_is_found_again_in_a_text_whose_single_words_were_deleted(text):
    concept = Concept("c", terms=["sophy", "James", "ipek"])
    assert find_spans([removed(text, concept)], concept) == [[]]


@settings(deadline=None)
@given(TEXTS, st.text(max_size=20))
def test_delete_leaves_no_leading_space_and_adds_no_double_space(left, right):
    text = regex.sub(r"\s+", " ", f"{left} Sophy {right}")
    out = removed(text)
    assert not out[:1].isspace()
    assert "  " not in out
    kept = regex.sub(r"\s", "", out)
    letters = iter(regex.sub(r"\s", "", text))
    assert all(letter in letters for letter in kept)


@settings(deadline=None)
@given(st.text("aB ,.'-\n", max_size=20), st.lists(st.tuples(st.integers(0, 20), st.integers(1, 5)), max_size=4))
def test_any_spans_can_be_removed_in_every_way(text, places):
    spans = [Span(start, start + length) for start, length in places if start + length <= len(text)]
    for how in REMOVALS:
        out = remove_spans(text, spans, how=how, surrogates=["zz"], generator=np.random.default_rng(0), placeholder="#")
        assert out == text or spans
        assert how != "placeholder" or out.count("#") == len(merge_spans(spans))


def test_contrast_pairs_skip_rows_without_the_concept_and_count_rows_left_without_a_word():
    texts = ["I met Sophy.", "Nobody.", "Sophy!", "James' book"]
    spans = find_spans(texts, SOPHY)
    pairs = contrast_pairs(texts, spans, how="delete")
    assert (pairs.positive, pairs.negative) == (["I met Sophy.", "James' book"], ["I met.", "book"])
    assert pairs.index.tolist() == [0, 3] and pairs.index.dtype == np.int64
    assert pairs.dropped == 1 and len(pairs) == 2
    assert repr(pairs) == "ContrastPairs(2 pairs, 1 dropped)"
    marked = contrast_pairs(texts, spans, how="placeholder", placeholder="someone")
    assert marked.negative == ["I met someone.", "someone book"] and marked.dropped == 1


def test_contrast_by_surrogate_draws_from_the_corpus():
    texts = ["I met Sophy.", "Nobody.", "SOPHY!", "James' book"]
    pairs = contrast_pairs(texts, find_spans(texts, SOPHY), how="surrogate", generator=np.random.default_rng(0))
    assert pairs.negative == ["I met James.", "JAMES!", "Sophy's book"]
    assert pairs.dropped == 0


def test_contrast_by_surrogate_drops_rows_that_have_no_other_value():
    texts = ["I met Sophy.", "Sophy left."]
    spans = find_spans(texts, SOPHY)
    alone = contrast_pairs(texts, spans, how="surrogate", generator=np.random.default_rng(0))
    assert len(alone) == 0 and alone.dropped == 2 and alone.index.shape == (0,)
    listed = contrast_pairs(texts, spans, how="surrogate", surrogates=["Ann"], generator=np.random.default_rng(0))
    assert listed.negative == ["I met Ann.", "Ann left."]


def test_contrast_pairs_refuse_spans_of_another_corpus():
    with pytest.raises(SparseError, match="spans has 2 entries for 1 records"):
        contrast_pairs(["a"], [[], []])
    with pytest.raises(SparseError, match="generator"):
        contrast_pairs(["a"], [[]], how="surrogate")


def test_prevalence_names_the_concept_and_the_counts():
    some, none = [Span(0, 1)], []
    assert check_prevalence([some, none, some], name="people") == 2
    for spans, message in (
        ([none] * 3, "'people'.* 0 of 3"),
        ([some] * 3, "'people'.* all 3"),
        ([], "no rows"),
    ):
        with pytest.raises(SparseError, match=message):
            check_prevalence(spans, len(spans), name="people")


@pytest.mark.parametrize("how", REMOVALS)
def test_removal_from_real_text_leaves_no_annotated_name(how):
    if not PII.exists():
        pytest.skip("shared data absent")
    data = pd.read_parquet(PII).iloc[:1500]
    spans = find_spans(data.text, Concept("people", entity_types=["PERSON"]), annotations=data.spans)
    pairs = contrast_pairs(data.text, spans, how=how, generator=np.random.default_rng(0))
    assert len(pairs) > 500
    changed = 0
    for row, positive, negative in zip(pairs.index, pairs.positive, pairs.negative, strict=True):
        assert positive == data.text.iloc[row] != negative
        names = {positive[span.start : span.end] for span in spans[row]}
        names = [name for name in names if any(map(str.isalpha, name))]
        (again,) = find_spans([negative], Concept("c", terms=names)) if names else ([],)
        changed += not again
        assert how == "placeholder" or "REDACTED" not in negative
    assert changed >= 0.99 * len(pairs)
