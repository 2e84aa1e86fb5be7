import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_core.errors import SparseError
from sparse_core.evaluation.splits import fold_text, near_duplicate_groups, split_records

LONG = "The committee will meet again on Thursday morning to discuss the budget for the coming year"


@pytest.mark.parametrize(
    "copy",
    [
        LONG.upper() + "!!",
        "  " + LONG.replace(" ", "   "),
        LONG.replace("Thursday", "Monday"),
        LONG + " in the town hall",
    ],
)
def test_near_duplicates_share_a_group(copy):
    groups = near_duplicate_groups([LONG, "Something else entirely was said here today by nobody", copy])
    assert groups[0] == groups[2] != groups[1]


def test_texts_that_differ_only_in_digits_share_a_group():
    assert len(set(near_duplicate_groups(["Call 555-0101", "call 555 0199", "Write to us"]))) == 2


def test_short_texts_are_not_joined_by_shared_words():
    assert len(set(near_duplicate_groups(["Anna is here", "Bert is here", "", "Cora was not"]))) == 4


def test_boilerplate_found_everywhere_joins_nothing():
    footer = " this message is confidential and meant for the named recipient only"
    texts = [f"{chr(97 + i % 26) * (1 + i // 26)} wrote" + footer for i in range(150)]
    assert len(set(near_duplicate_groups(texts))) == 150


def test_folding_unifies_case_space_punctuation_and_digits():
    assert fold_text("Ｃall  Anna, on 555-0172!\n") == "call anna on 000 0000"


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.integers(0, 30), min_size=2, max_size=120).filter(lambda g: len(set(g)) > 1),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 5),
)
def test_a_split_keeps_groups_whole_and_loses_no_record(groups, share, seed):
    groups = np.array(groups)
    split = split_records(groups, test_share=share, seed=seed)
    assert sorted([*split.train, *split.test]) == list(range(len(groups)))
    assert len(split.train) and len(split.test)
    assert not set(groups[split.train]) & set(groups[split.test])
    assert split.n_groups == len(set(groups))


def test_the_share_is_met_and_the_seed_decides():
    texts = [f"record about {word} and nothing more" for word in map(str.__mul__, "abcdefghij" * 30, [3] * 300)]
    texts = [f"{text} {chr(97 + i // 26)}{chr(97 + i % 26)}" for i, text in enumerate(texts)]
    groups = np.arange(300)
    first, again, other = (split_records(groups, test_share=0.25, seed=s) for s in (1, 1, 2))
    assert len(first.test) == 75
    assert (first.test == again.test).all()
    assert (first.test != other.test).any()
    assert (
        split_records(texts, test_share=0.25, seed=1).test == split_records(texts, test_share=0.25, seed=1).test
    ).all()


def test_splits_that_cannot_be_are_refused():
    with pytest.raises(SparseError, match="1 group"):
        split_records([LONG, LONG.upper()])
    with pytest.raises(SparseError, match="between 0 and 1"):
        split_records(np.arange(10), test_share=1.0)
