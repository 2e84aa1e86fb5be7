"""How near a reconstruction comes to the text that was hidden.

A concept token is leaked when it stands as a word anywhere in the reconstruction, case folded, words being what
`sparse_core.concepts.words.word_tokens` sees: the same rule that named the token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import numpy as np

from sparse_core.concepts.words import word_tokens
from sparse_core.errors import SparseError
from sparse_core.evaluation.metrics import unit_rows
from sparse_core.positions import by_position

SCORES = ("bleu", "rouge_l", "token_f1", "cosine")


def check_score_libraries() -> None:
    """Refuse to start without the libraries that score.

    Raises
    ------
    SparseError
        Naming the extra to install.
    """
    missing = [name for name in ("sacrebleu", "rouge_score") if find_spec(name) is None]
    if missing:
        raise SparseError(
            f"attacks that write texts are scored with {' and '.join(missing)}, which is not installed; "
            "pip install 'sparse-embeddings[text_attacks]'"
        )


def word_labels(texts: Sequence[str], vocabulary: Sequence[str]) -> np.ndarray:
    """Which tokens stand in which texts as words.

    Parameters
    ----------
    texts : sequence of str
    vocabulary : sequence of str
        Case-folded words.

    Returns
    -------
    bool array, shape (n_texts, n_tokens)
    """
    texts, vocabulary = by_position(texts, "texts"), by_position(vocabulary, "vocabulary")
    column = {token: place for place, token in enumerate(vocabulary)}
    found = np.zeros((len(texts), len(column)), dtype=bool)
    for row, text in enumerate(texts):
        found[row, [column[word] for word in word_tokens(text) if word in column]] = True
    return found


def word_overlap(left: str, right: str) -> float:
    """F measure of the different words two texts share, as plain as it must be to compare candidates by the thousand.

    Parameters
    ----------
    left, right : str

    Returns
    -------
    float
        In [0, 1].
    """
    words = set(word_tokens(left)), set(word_tokens(right))
    return 2 * len(words[0] & words[1]) / max(1, len(words[0]) + len(words[1]))


def reconstruction_scores(
    originals: Sequence[str],
    reconstructions: Sequence[str],
    *,
    vectors: np.ndarray,
    encode: Callable[[list[str]], np.ndarray],
) -> np.ndarray:
    """Scores of each reconstruction, in the order of `SCORES`.

    Parameters
    ----------
    originals, reconstructions : sequence of str, length n_records
    vectors : float array, shape (n_records, n)
        Embeddings of the originals.
    encode : callable
        The victim's encoder, texts to float array, shape (n_texts, n).

    Returns
    -------
    float array, shape (n_records, 4)
        `bleu`, BLEU of the sentence without letter case, 0 to 100 (sacrebleu, 13a, exponential smoothing, effective
        order). `rouge_l`, the F measure of the longest common subsequence of words (rouge-score). `token_f1`, the F
        measure of words regardless of their order (ROUGE-1). `cosine`, of the two texts' embeddings.
    """
    from rouge_score.rouge_scorer import RougeScorer
    from sacrebleu.metrics import BLEU

    originals = by_position(originals, "originals")
    reconstructions = by_position(reconstructions, "reconstructions", length=len(originals))
    bleu = BLEU(lowercase=True, effective_order=True)
    rouge = RougeScorer(["rougeL", "rouge1"], tokenizer=_Words())
    cosine = np.sum(unit_rows(np.asarray(vectors)) * unit_rows(np.asarray(encode(reconstructions))), axis=1)
    rows = []
    for original, reconstruction, near in zip(originals, reconstructions, cosine, strict=True):
        overlap = rouge.score(original, reconstruction)
        translated = bleu.sentence_score(reconstruction, [original]).score
        rows.append((translated, overlap["rougeL"].fmeasure, overlap["rouge1"].fmeasure, near))
    return np.array(rows, dtype=float).reshape(-1, len(SCORES))


class _Words:
    """rouge-score's own tokenizer knows English letters only."""

    def tokenize(self, text: str) -> list[str]:
        return list(word_tokens(text))
