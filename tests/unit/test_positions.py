"""Whatever is list-like is taken by position: a Series that was shuffled or filtered gives what its values give."""

import dataclasses

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sparse_core.attacks import RidgeAttack, averaging_attack, dictionary_attack, reidentification, run_attack
from sparse_core.attacks.candidates import substituted_candidates
from sparse_core.attacks.knowledge import PublicKnowledge
from sparse_core.attacks.text.scores import word_labels
from sparse_core.budget import subject_numbers
from sparse_core.concepts import (
    Concept,
    SurrogatePool,
    check_prevalence,
    contrast_pairs,
    find_spans,
    value_substitutions,
)
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.evaluation import (
    classification,
    clustering,
    near_duplicate_groups,
    ratio_interval,
    retrieval,
    split_records,
    sts,
    token_labels,
)
from sparse_core.masks import learn_mask
from sparse_core.noise import Key, record_uniforms, release_fingerprints, vector_fingerprints
from sparse_core.policy import Policy
from sparse_core.positions import by_position

N_ROWS, N = 60, 6
KEY = Key(bytes(range(32)))
SPEC = EncoderSpec("made-up", None, "a" * 64, N, "mean", True, 64)
POLICY = Policy.build(encoder=SPEC, mechanism="laplace", rho=1, read_out="none")
CONCEPT = Concept("disease", terms=("asthma", "stroke", "gout"))
VALUES = ["asthma", "stroke", "gout"]
WORDS = ["knee", "left", "pain", "had", "seen", "note", "ward", "night"]
ROWS = np.random.default_rng(0)
VECTORS = ROWS.standard_normal((N_ROWS, N))
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)
TEXTS = [
    " ".join([*ROWS.permutation(WORDS)[:5], *(VALUES[row % 3 : row % 3 + 1] if row % 4 else []), str(row)])
    for row in range(N_ROWS)
]
SPANS = find_spans(TEXTS, CONCEPT)
IDS = [f"record {row}" for row in range(N_ROWS)]
LABELS = [row % 3 for row in range(N_ROWS)]
TOKENS = [[value for value in VALUES if value in text] for text in TEXTS]
BEARING = [row for row in range(N_ROWS) if row % 4]
TRAIN, TEST = list(range(0, N_ROWS, 2)), list(range(1, N_ROWS, 2))


def seed():
    return np.random.default_rng(3)


def release(as_given, **more):
    return POLICY.release(VECTORS, ids=as_given(IDS), contents=as_given(TEXTS), key=KEY, **more)


def mask_of(as_given):
    half = N_ROWS // 2
    return learn_mask(
        positive=as_given(VECTORS[:half]),
        negative=as_given(VECTORS[half:]),
        embeddings=as_given(VECTORS),
        concepts=("made-up",),
        concept_fingerprint="f" * 16,
        salt="5a17",
        encoder=SPEC,
        basis="shift",
        epochs=2,
        allow_degenerate=True,
    ).values


def attacked(as_given):
    labels = np.array(LABELS)[:, None] == np.arange(3)
    return run_attack(
        RidgeAttack(),
        unprotected=as_given(VECTORS),
        protected=as_given(VECTORS + 0.1),
        labels=as_given(labels),
        train=as_given(TRAIN),
        test=as_given(TEST),
        public=PublicKnowledge(),
        seed=0,
        n_bootstrap=10,
    )


def named(as_given):
    return {"subjects": as_given(IDS), "contents": as_given(TEXTS), "policy_hash": "ab"}


def bits(function):
    return lambda given: function(KEY, **named(given), **({} if function is release_fingerprints else EMBEDDED))


EMBEDDED = {"embeddings": POLICY.law.on_grid(VECTORS)}
CASES = {
    "Policy.release": release,
    "Policy.release, subjects": lambda given: release(given, subjects=given(IDS[::-1])),
    "Policy.release, vectors": lambda given: POLICY.release(given(VECTORS), ids=IDS, contents=TEXTS, key=KEY),
    "Policy.fingerprints": lambda given: POLICY.fingerprints(
        given(VECTORS), subjects=given(IDS), contents=given(TEXTS), key=KEY
    ),
    "Policy.query_transform": lambda given: POLICY.query_transform(given(VECTORS)),
    "Policy.undo_read_out": lambda given: POLICY.undo_read_out(given(VECTORS)),
    "record_uniforms": lambda given: record_uniforms(KEY, **named(given), **EMBEDDED, count=3),
    "release_fingerprints": bits(release_fingerprints),
    "vector_fingerprints": bits(vector_fingerprints),
    "subject_numbers": lambda given: subject_numbers(given(IDS)),
    "find_spans": lambda given: find_spans(given(TEXTS), CONCEPT),
    "find_spans, annotations": lambda given: find_spans(
        given(TEXTS), CONCEPT, annotations=given([[{"start": 0, "end": 2}] if row % 3 else None for row in LABELS])
    ),
    "check_prevalence": lambda given: check_prevalence(given(SPANS)),
    "contrast_pairs": lambda given: dataclasses.asdict(contrast_pairs(given(TEXTS), given(SPANS))),
    "contrast_pairs, surrogates": lambda given: dataclasses.asdict(
        contrast_pairs(given(TEXTS), given(SPANS), how="surrogate", surrogates=given(VALUES), generator=seed())
    ),
    "value_substitutions": lambda given: dataclasses.asdict(
        value_substitutions(given(TEXTS), given(SPANS), values=given(VALUES), generator=seed())
    ),
    "SurrogatePool.of": lambda given: SurrogatePool.of(given(VALUES)).values,
    "SurrogatePool.from_spans": lambda given: SurrogatePool.from_spans(given(TEXTS), given(SPANS)).values,
    "token_labels": lambda given: token_labels(given(TOKENS), train=given(TRAIN), min_count=1).labels,
    "near_duplicate_groups": lambda given: near_duplicate_groups(given(TEXTS)),
    "split_records, texts": lambda given: split_records(given(TEXTS)).test,
    "split_records, groups": lambda given: split_records(given([row // 2 for row in range(N_ROWS)])).test,
    "classification": lambda given: classification(
        given(VECTORS[:30]), given(LABELS[:30]), given(VECTORS[30:]), given(LABELS[30:]), generator=seed()
    ),
    "clustering": lambda given: clustering(given(VECTORS), given(LABELS), n_experiments=2, generator=seed()),
    "retrieval": lambda given: retrieval(
        given(VECTORS), given(VECTORS), given([{row: 1.0} for row in range(N_ROWS)]), generator=seed()
    ),
    "sts": lambda given: sts(given(VECTORS), given(VECTORS[::-1]), given(list(range(N_ROWS))), generator=seed()),
    "ratio_interval": lambda given: ratio_interval(given(LABELS), given([row + 1 for row in LABELS]), generator=seed()),
    "run_attack": attacked,
    "reidentification": lambda given: reidentification(
        given(VECTORS), given(VECTORS), rows=given(list(range(N_ROWS))), generator=seed()
    ),
    "dictionary_attack": lambda given: dictionary_attack(
        given(VECTORS), VECTORS[:3], given(LABELS), law=POLICY.law, prior=given([0.2, 0.3, 0.5]), generator=seed()
    ),
    "averaging_attack": lambda given: averaging_attack(
        POLICY, given(VECTORS), given(IDS), given(TEXTS), keys=given([KEY]), releases=given([1]), generator=seed()
    ),
    "substituted_candidates": lambda given: substituted_candidates(
        given([TEXTS[row] for row in BEARING]),
        given([SPANS[row][0] for row in BEARING]),
        given(VALUES),
        encode=lambda texts: np.array([[len(text), hash(text) % 97] for text in texts]),
    )(slice(0, 5)),
    "word_labels": lambda given: word_labels(given(TEXTS), given(VALUES)),
    "learn_mask": mask_of,
}


def shuffled(values):
    """The values under labels that name other rows; float arrays as a table."""
    order = np.random.default_rng(1).permutation(len(values))
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return pd.DataFrame(values, index=order)
    return pd.Series(list(values), index=order, dtype=None if isinstance(values[0], int | float) else object)


def as_array(values):
    if isinstance(values, np.ndarray):
        return values
    array = np.empty(len(values), dtype=type(values[0]) if isinstance(values[0], int | float) else object)
    array[:] = values
    return array


def compare(found, wanted):
    if dataclasses.is_dataclass(wanted):
        for field in dataclasses.fields(wanted):
            compare(getattr(found, field.name), getattr(wanted, field.name))
    elif isinstance(wanted, dict):
        for name in wanted:
            compare(found[name], wanted[name])
    elif isinstance(wanted, tuple) and wanted and dataclasses.is_dataclass(wanted[0]):
        for one, other in zip(found, wanted, strict=True):
            compare(one, other)
    elif isinstance(wanted, np.ndarray | float):
        np.testing.assert_array_equal(found, wanted)
    else:
        assert found == wanted


@pytest.mark.parametrize("given", [shuffled, as_array], ids=["shuffled series", "array"])
@pytest.mark.parametrize("name", CASES)
def test_a_series_an_array_and_a_list_give_the_same(name, given):
    compare(CASES[name](given), CASES[name](lambda values: values))


@pytest.mark.parametrize("kind", [pa.array, pd.Index, tuple, lambda values: pa.chunked_array([values[:2], values[2:]])])
def test_arrow_columns_and_indexes_are_lists_too(kind):
    np.testing.assert_array_equal(release(kind), release(list))


TAKES_TEXTS = {
    "Policy.release": lambda texts: POLICY.release(VECTORS, ids=texts, contents=TEXTS, key=KEY),
    "Policy.release, contents": lambda texts: POLICY.release(VECTORS, ids=IDS, contents=texts, key=KEY),
    "Policy.release, subjects": lambda texts: release(list, subjects=texts),
    "find_spans": lambda texts: find_spans(texts, CONCEPT),
    "contrast_pairs": lambda texts: contrast_pairs(texts, SPANS),
    "value_substitutions": lambda texts: value_substitutions(texts, SPANS, generator=seed()),
    "SurrogatePool.of": SurrogatePool.of,
    "near_duplicate_groups": near_duplicate_groups,
    "split_records": split_records,
    "subject_numbers": subject_numbers,
}


@pytest.mark.parametrize("wrong", ["a" * N_ROWS, dict.fromkeys(TEXTS), set(TEXTS), pd.DataFrame({"text": TEXTS}), 7])
@pytest.mark.parametrize("name", TAKES_TEXTS)
def test_one_text_and_what_has_no_order_are_refused(name, wrong):
    with pytest.raises(SparseError, match=r"give (a list|one row)"):
        TAKES_TEXTS[name](wrong)


@pytest.mark.parametrize(
    "call",
    [
        lambda few: POLICY.release(VECTORS, ids=few(IDS), contents=TEXTS, key=KEY),
        lambda few: POLICY.release(VECTORS, ids=IDS, contents=few(TEXTS), key=KEY),
        lambda few: release(list, subjects=few(IDS)),
        lambda few: POLICY.fingerprints(VECTORS, subjects=few(IDS), contents=TEXTS, key=KEY),
        lambda few: contrast_pairs(TEXTS, few(SPANS)),
        lambda few: value_substitutions(few(TEXTS), SPANS, generator=seed()),
        lambda few: SurrogatePool.from_spans(few(TEXTS), SPANS),
        lambda few: substituted_candidates(TEXTS, few(SPANS), VALUES, encode=None),
        lambda few: retrieval(VECTORS, VECTORS, few([{0: 1.0}] * N_ROWS), generator=seed()),
    ],
)
@pytest.mark.parametrize("few", [lambda values: values[:-1], lambda values: [*values, values[0]]], ids=["less", "more"])
def test_lengths_that_differ_are_refused(call, few):
    with pytest.raises(SparseError, match=r"\d+"):
        call(few)


def test_refusals_do_not_show_the_text():
    with pytest.raises(SparseError) as caught:
        by_position("very private", "texts")
    assert "private" not in str(caught.value)
