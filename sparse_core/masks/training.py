"""Learning a mask: which directions of a basis tell that, and which, concept tokens are in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sparse_core.errors import SparseError
from sparse_core.masks.artifact import Mask, MaskInfo
from sparse_core.masks.bases import build_basis

if TYPE_CHECKING:
    from sparse_core.encoders import EncoderSpec

DEFAULT_BASIS = "label"


def learn_mask(
    *,
    positive: np.ndarray,
    negative: np.ndarray,
    embeddings: np.ndarray,
    token_labels: np.ndarray | None = None,
    concepts: tuple[str, ...],
    concept_fingerprint: str,
    salt: str,
    encoder: EncoderSpec,
    basis: str = DEFAULT_BASIS,
    directions: int | None = None,
    penalty: float = 0.02,
    seed: int = 0,
    epochs: int = 40,
    learning_rate: float = 1e-3,
    gate_learning_rate: float = 0.05,
    temperature: float = 2 / 3,
    validation_share: float = 0.2,
    graded: bool = False,
    lengths: tuple[np.ndarray, np.ndarray] | None = None,
    allow_degenerate: bool = False,
    device: str = "cpu",
    progress: Callable[[int, int, dict[str, float]], None] | None = None,
) -> Mask:
    """Learn which directions need noise to hide a concept.

    HardConcrete gates on the directions of `basis` are trained with a classifier that tells sentences with the
    concept from the same sentences without it, and with a second one that tells which concept tokens a sentence
    has: the first alone is content with one direction, such as sentence length, and leaves the rest open. In
    basis ``coordinate`` only the first is used, as in arXiv 2602.07090. The loss is the mean of the classifiers'
    losses, each divided by its value without embeddings, plus ``penalty`` times the expected share of the n directions that are open.

    Parameters
    ----------
    positive, negative : float array, shape (n_pairs, n)
        Embeddings of sentences with the concept and of the same sentences without it, row by row.
    embeddings : float array, shape (n_records, n)
        The training corpus.
    token_labels : bool array, shape (n_records, n_tokens), optional
        Which concept tokens each record has.
    concepts, concept_fingerprint, salt, encoder
        Recorded in the mask, see `MaskInfo`.
    basis : {"coordinate", "shift", "label", "blend"}
        See `build_basis`.
    directions : int, optional
        At most this many concept directions.
    penalty : float
        Larger closes more gates.
    seed : int
        The same seed and inputs give the same mask.
    epochs : int
        At most; training stops when neither the held-out accuracy nor the gates have moved for five.
    learning_rate, gate_learning_rate : float
        Adam step sizes of the classifiers and of the gates. A gate is 0 only below log_alpha = -2.4, and Adam
        moves it by about the step size a batch: a rate fit for the classifiers never closes one.
    temperature : float
        Of the gates, see `HardConcreteGates`.
    validation_share : float
        Share of pairs held out.
    graded : bool
        Scale the gates by the strength of their directions (square root, so as standard deviations).
    lengths : pair of arrays, shapes (n_pairs,) or (n_pairs, k), optional
        Lengths of the positive and negative sentences, such as characters and words. Reports how much of the
        held-out accuracy length alone explains.
    allow_degenerate : bool
        Return a mask with all or no gates open instead of raising.
    device : str
    progress : callable, optional
        Called as ``progress(epoch, epochs, metrics)``.

    Returns
    -------
    Mask

    Raises
    ------
    SparseError
        For inputs that do not fit together or are not finite, and for a degenerate mask.
    """
    from sparse_core.masks.gates import train_gates

    positive, negative, embeddings = _checked(positive, negative, embeddings, token_labels, encoder)
    if not penalty >= 0:
        raise SparseError(f"penalty is {penalty}: it must be 0 or more")
    if not 0 < validation_share < 1:
        raise SparseError(f"validation_share is {validation_share}: it must lie between 0 and 1")
    found = build_basis(
        basis,
        embeddings=embeddings,
        positive=positive,
        negative=negative,
        token_labels=token_labels,
        directions=directions,
    )
    held_out = _held_out(len(positive), validation_share, seed)
    candidates = found.strength > 0
    gates, metrics = train_gates(
        positive=positive @ found.directions[:, candidates],
        negative=negative @ found.directions[:, candidates],
        held_out=held_out,
        records=embeddings @ found.directions[:, candidates],
        token_labels=None if basis == "coordinate" else token_labels,
        dimension=embeddings.shape[1],
        penalty=penalty,
        seed=seed,
        epochs=epochs,
        learning_rate=learning_rate,
        gate_learning_rate=gate_learning_rate,
        temperature=temperature,
        device=device,
        progress=progress,
    )
    values = np.zeros(embeddings.shape[1])
    values[candidates] = gates
    _check_degenerate(values, penalty, allow_degenerate)
    if graded:
        values *= np.sqrt(found.strength / found.strength.max())
    metrics |= {
        "directions_open": float(np.count_nonzero(values)),
        "directions_candidate": float(candidates.sum()),
        "strength_open": float(found.strength[values > 0].sum()),
    }
    if lengths is not None:
        metrics["accuracy_length_only"] = _length_accuracy(*lengths, held_out)
    mean = embeddings.mean(axis=0)
    coordinates = (embeddings - mean) @ found.directions
    info = MaskInfo(
        concepts=tuple(concepts),
        concept_fingerprint=concept_fingerprint,
        salt=salt,
        encoder=encoder,
        basis=basis,
        penalty=float(penalty),
        seed=int(seed),
        metrics=metrics,
    )
    return Mask(values, found.directions, mean, coordinates.T @ coordinates / len(coordinates), info)


def _checked(
    positive, negative, embeddings, token_labels, encoder
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    arrays = {"positive": positive, "negative": negative, "embeddings": embeddings}
    for name, array in arrays.items():
        arrays[name] = array = np.asarray(array, dtype=np.float64)
        if array.ndim != 2 or array.shape[1] != encoder.dimension:
            raise SparseError(f"{name} has shape {array.shape}; (rows, {encoder.dimension}) fits the encoder")
        if not np.isfinite(array).all():
            raise SparseError(f"{name} has values that are not finite: find the texts that encode to them")
    if len(arrays["positive"]) != len(arrays["negative"]):
        raise SparseError(
            f"{len(arrays['positive'])} positive and {len(arrays['negative'])} negative sentences: pairs go by row"
        )
    if len(arrays["positive"]) < 10:
        raise SparseError(
            f"{len(arrays['positive'])} sentences with the concept are too few to learn a mask (at least 10): "
            "give more records or widen the concept"
        )
    if token_labels is not None and len(token_labels) != len(arrays["embeddings"]):
        raise SparseError(
            f"{len(token_labels)} rows of token_labels for {len(arrays['embeddings'])} embeddings"
        )
    return arrays["positive"], arrays["negative"], arrays["embeddings"]


def _held_out(n_pairs: int, share: float, seed: int) -> np.ndarray:
    held_out = np.zeros(n_pairs, dtype=bool)
    count = min(max(1, round(share * n_pairs)), n_pairs - 1)
    held_out[np.random.default_rng(seed).permutation(n_pairs)[:count]] = True
    return held_out


def _check_degenerate(values: np.ndarray, penalty: float, allowed: bool) -> None:
    open_gates = np.count_nonzero(values)
    if allowed or 0 < open_gates < len(values):
        return
    if open_gates == 0:
        raise SparseError(f"every gate closed: penalty {penalty:g} is too large for this concept, lower it")
    raise SparseError(
        f"all {len(values)} gates stayed open, which is isotropic noise: raise penalty (now {penalty:g}), choose a "
        "basis of directions, or ask for it with allow_degenerate=True"
    )


def _length_accuracy(positive, negative, held_out: np.ndarray) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    positive, negative = (
        np.asarray(a, dtype=np.float64).reshape(len(held_out), -1) for a in (positive, negative)
    )
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(np.vstack([positive[~held_out], negative[~held_out]]), np.repeat([1, 0], np.sum(~held_out)))
    return float(
        model.score(np.vstack([positive[held_out], negative[held_out]]), np.repeat([1, 0], held_out.sum()))
    )
