import numpy as np
import pyarrow as pa
import pytest

from jobs.chunks import Chunker, chunked
from jobs.sources import Rejected, Rows
from sparse_core.encoders import load_encoder
from sparse_core.errors import SparseError


@pytest.fixture(scope="module")
def tokenizer(encoder):
    return encoder.tokenizer


@pytest.fixture(scope="module")
def long(sentences):
    return " ".join(sentences[:80])


def rows(ids, texts):
    return Rows(
        ids=ids,
        texts=texts,
        vectors=None,
        columns=pa.RecordBatch.from_pydict({"section": [f"s{i}" for i in ids]}),
        positions=[f"file: row {n}" for n in range(len(ids))],
        subjects=[str(i) for i in ids],
        rejected=[Rejected("x", "empty text", "file: row 9")],
    )


def letters(texts):
    return "".join("".join(texts).split())


def test_a_text_that_fits_is_its_own_only_chunk(tokenizer):
    assert Chunker(tokenizer, tokens=64).split("  pain in the left knee\n") == ["  pain in the left knee\n"]


@pytest.mark.parametrize("text", ["long", "unbroken", "ideographs", "blank", "empty"])
@pytest.mark.parametrize("tokens", [16, 64, 256])
def test_no_chunk_is_longer_than_allowed(tokenizer, long, text, tokens):
    texts = {"unbroken": "painful-" * 3000, "ideographs": "東京é🩺" * 800, "blank": " \n" * 5000, "empty": ""}
    chunks = Chunker(tokenizer, tokens=tokens, overlap=4).split(texts.get(text, long))
    assert len(chunks) >= 1
    assert max(tokenizer.lengths(chunks)) <= tokens


def test_the_chunks_hold_every_letter_in_order_and_repeat_few_words(tokenizer, long):
    plain = Chunker(tokenizer, tokens=48).split(long)
    assert letters(plain) == letters([long])
    overlapping = Chunker(tokenizer, tokens=48, overlap=12).split(long)
    repeated = sum(map(len, map(str.split, overlapping))) - len(long.split())
    assert 0 < repeated <= 12 * len(overlapping)
    assert all(chunk in long for chunk in overlapping)


def test_a_very_long_text_is_cut_in_time_and_without_loss(tokenizer, long):
    text = "\n".join(f"{number}. {long}" for number in range(12))
    chunks = Chunker(tokenizer, tokens=32).split(text)
    assert letters(chunks) == letters([text])
    assert max(tokenizer.lengths(chunks)) <= 32


def test_the_same_text_is_always_cut_the_same_way(tokenizer, long):
    first, second = (Chunker(tokenizer, tokens=64, overlap=16) for _ in range(2))
    assert first.split(long) == second.split(long) == first.split(long)


def test_a_prompt_takes_its_room(long):
    prompted = load_encoder(device="cpu", threads=1, prompt="represent this clinical note for retrieval: ")
    chunks = Chunker(prompted.tokenizer, tokens=32, max_tokens=256).split(long)
    assert max(prompted.tokenizer.lengths(chunks)) <= 32
    assert prompted.count_truncated(chunks) == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tokens": 300}, r"chunk\.tokens: the encoder reads 256 tokens, not 300"),
        ({"tokens": 2}, r"chunk: 2 tokens, 2 of them special"),
        ({"tokens": 34, "overlap": 32}, r"chunk: .* overlap of 32"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(tokenizer, options, told):
    with pytest.raises(SparseError, match=told):
        Chunker(tokenizer, max_tokens=256, **options)


def test_chunks_keep_their_parents_columns_and_places(tokenizer, long):
    chunker = Chunker(tokenizer, tokens=256, overlap=32)
    given = rows(["a", "b"], ["short", long])
    found = chunked(given, chunker)
    pieces = chunker.split(long)
    assert found.ids == ["a#0", *(f"b#{n}" for n in range(len(pieces)))]
    assert found.parents == ["a", *["b"] * len(pieces)]
    assert found.chunks == [0, *range(len(pieces))]
    assert found.texts == found.contents == ["short", *pieces]
    assert found.columns["section"].to_pylist() == ["sa", *["sb"] * len(pieces)]
    assert found.positions[-1] == "file: row 1"
    assert found.subjects == found.parents
    assert found.rejected == given.rejected


def test_some_chunks_can_be_taken(tokenizer, long):
    found = chunked(rows([7, 8], ["short", long]), Chunker(tokenizer, tokens=64)).take(np.array([0, 2]))
    assert (found.ids, found.parents, found.chunks) == (["7#0", "8#1"], [7, 8], [0, 1])
    assert len(found) == 2 and found.rejected == []


def test_no_rows_make_no_chunks(tokenizer):
    found = chunked(rows([], []), Chunker(tokenizer, tokens=64))
    assert (len(found), found.parents, found.columns.schema.names) == (0, [], ["section"])
