import importlib.util

import numpy as np
import pytest
import sacrebleu
from sklearn.metrics import f1_score

from sparse_core.attacks.text import check_score_libraries, reconstruction_scores, word_labels
from sparse_core.errors import SparseError


def scored(original, reconstruction, encode=lambda texts: np.ones((len(texts), 2))):
    return reconstruction_scores([original], [reconstruction], vectors=encode([original]), encode=encode)[0]


def test_a_token_counts_where_it_stands_as_a_word_whatever_its_case():
    found = word_labels(
        ["ANNA's cat", "Annabel sat", "the cat; anna", "", "Straße in Köln"], ("anna", "cat", "strasse", "köln")
    )
    assert found.tolist() == [
        [True, True, False, False],
        [False, False, False, False],
        [True, True, False, False],
        [False, False, False, False],
        [False, False, True, True],
    ]


def test_scores_of_a_reconstruction_are_those_worked_out_by_hand():
    bleu, rouge_l, token_f1, _ = scored("The patient has severe asthma today", "today the patient has asthma")
    # Four of five words in order, of six: 2 * (4/5 * 4/6) / (4/5 + 4/6); all five occur: 2 * 5 / 11.
    assert rouge_l == pytest.approx(8 / 11)
    assert token_f1 == pytest.approx(10 / 11)
    # n-gram precisions 5/5, 2/4, 1/3 and, with nothing found of 2, 1 / (2 * 2); brevity penalty exp(1 - 6/5).
    assert bleu == pytest.approx(100 * np.exp(1 - 6 / 5) * (1 * 1 / 2 * 1 / 3 * 1 / 4) ** 0.25)


def test_bleu_is_sacrebleus_without_letter_case():
    original, reconstruction = "She denies chest pain, fever or chills.", "she denies chest pain, chills or fever."
    expected = sacrebleu.sentence_bleu(reconstruction, [original], lowercase=True).score
    assert scored(original, reconstruction)[0] == pytest.approx(expected)
    assert 0 < expected < 100


def test_token_f1_is_the_f_measure_over_words_of_any_script():
    vocabulary = ["болит", "голова", "у", "анны", "нет"]
    original, reconstruction = "у Анны болит голова", "болит голова нет"
    truth, found = word_labels([original, reconstruction], vocabulary)
    assert scored(original, reconstruction)[2] == pytest.approx(f1_score(truth, found))


def test_the_text_itself_scores_highest_and_an_empty_one_lowest():
    def encode(texts):
        return np.array([[1.0, 0.0] if text else [0.0, 2.0] for text in texts])

    assert scored("Asthma since childhood, well controlled.", "asthma since childhood, well controlled.", encode) == (
        pytest.approx([100, 1, 1, 1])
    )
    assert scored("Asthma since childhood.", "", encode) == pytest.approx([0, 0, 0, 0])


def test_a_missing_score_library_is_named_with_the_extra_that_brings_it(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "sparse_core.attacks.text.scores.find_spec", lambda name: None if name == "sacrebleu" else find(name)
    )
    with pytest.raises(SparseError, match=r"sacrebleu, which is not installed.*sparse-embeddings\[text_attacks\]"):
        check_score_libraries()
