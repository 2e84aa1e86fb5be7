"""Learning a mask: which directions of a basis tell that, and which, concept tokens are in a sentence."""

from collections.abc import Callable

import numpy as np
from scipy import sparse

from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.masks.artifact import Mask, MaskInfo
from sparse_core.masks.bases import concept_directions, noise_shape

DEFAULT_BASIS = "substitution"
DEFAULT_PENALTY = 0.4


def learn_mask(
    *,
    positive: np.ndarray,
    negative: np.ndarray,
    embeddings: np.ndarray,
    token_labels: np.ndarray | sparse.sparray | None = None,
    substitutions: np.ndarray | None = None,
    concepts: tuple[str, ...],
    concept_fingerprint: str,
    salt: str,
    encoder: EncoderSpec,
    basis: str = DEFAULT_BASIS,
    directions: int | None = None,
    graded: bool = True,
    penalty: float = DEFAULT_PENALTY,
    seed: int = 0,
    epochs: int = 100,
    learning_rate: float = 1e-3,
    gate_learning_rate: float = 0.05,
    temperature: float = 2 / 3,
    validation_share: float = 0.2,
    lengths: tuple[np.ndarray, np.ndarray] | None = None,
    allow_degenerate: bool = False,
    device: str = "cpu",
    progress: Callable[[int, int, dict[str, float]], None] | None = None,
) -> Mask:
    """Learn which directions need noise to hide a concept.

    HardConcrete gates on the directions of `basis` minimise three terms: the expected share of the concept's energy
    in closed directions, the loss in bits of a classifier that tells sentences with the concept from the same
    sentences without it through the gates (weighted 1/n), and ``penalty`` times the expected share of utility that
    open directions cost: of what distinguishes near sentences, or 1/n each where a basis does not weigh directions
    (see `concept_directions`). The classifier alone, as in arXiv 2602.07090, asks only *whether* the concept is
    there: it is content with directions such as sentence length and leaves others, which tell one token from
    another, in the clear. Basis ``coordinate`` keeps to it, with weight 1, for parity with the paper.

    Parameters
    ----------
    positive, negative : float array, shape (n_pairs, n)
        Embeddings of sentences with the concept and of the same sentences without it, row by row.
    embeddings : float array, shape (n_records, n)
        The training corpus.
    token_labels : bool array, dense or SciPy sparse, shape (n_records, n_tokens), optional
        Which concept tokens each record has. Give every token of the concept found in the corpus, down to those
        seen once: rare ones say little of themselves but much of tokens that the corpus does not have.
    substitutions : float array, shape (n_contexts, n_values, n), optional
        Embeddings of the same sentences with each value of the concept put in, see `value_substitutions`.
    concepts, concept_fingerprint, salt, encoder
        Recorded in the mask, see `MaskInfo`.
    basis : {"substitution", "blend", "erasure", "label", "shift", "coordinate"}
        See `concept_directions`.
    directions : int, optional
        At most this many concept directions.
    graded : bool
        See `noise_shape`. Ignored for ``coordinate``, whose mask is the gates.
    penalty : float
        Larger closes more gates. A direction stays open where it has more than ``penalty`` times as large a share
        of the concept's energy as of utility (1/n for ``label``, ``shift`` and ``coordinate``) or is worth more
        than ``penalty`` bits per 1/n of utility to the classifier. With 0.4 at rho 3 and floor .005, STS12 keeps
        94-96%, and known tokens leak 28-32% of what they do unprotected (tests/benchmarks/test_mask_study.py).
    seed : int
        The same seed and inputs give the same mask.
    epochs : int
        At most; training stops when neither the held-out accuracy nor the gates have moved for ten.
    learning_rate, gate_learning_rate : float
        Adam step sizes of the classifier and of the gates. A gate is 0 only below log_alpha = -2.4 and travels
        at most a step size per batch: a rate fit for the classifier hardly closes one.
    temperature : float
        Of the gates, see `HardConcreteGates`.
    validation_share : float
        Share of pairs held out.
    lengths : pair of arrays, shapes (n_pairs,) or (n_pairs, k), optional
        Lengths of the positive and negative sentences, such as characters and words, to report how much of the
        held-out accuracy length alone explains.
    allow_degenerate : bool
        Return a mask with no gate or every gate open (isotropic noise) instead of raising.
    device : str
    progress : callable, optional
        Called as ``progress(epoch, epochs, metrics)``.

    Returns
    -------
    Mask
        Its ``info.metrics``: ``accuracy`` (of the classifier, held-out pairs), ``accuracy_length_only``,
        ``expected_l0``, ``epochs``, ``directions_open``, ``directions_candidate`` and ``energy_open``, the share
        of the concept's energy in open directions.

    Raises
    ------
    SparseError
        For inputs that do not fit together or are not finite, and for a degenerate mask.
    """
    from sklearn.covariance import ledoit_wolf

    from sparse_core.masks.gates import train_gates

    positive, negative, embeddings, token_labels = _checked(positive, negative, embeddings, token_labels, encoder)
    if not penalty >= 0:
        raise SparseError(f"penalty is {penalty}: it must be 0 or more")
    if not 0 < validation_share < 1:
        raise SparseError(f"validation_share is {validation_share}: it must lie between 0 and 1")
    if substitutions is not None:
        substitutions = _checked_substitutions(substitutions, encoder)
    mean = embeddings.mean(axis=0)
    covariance, _ = ledoit_wolf(embeddings)
    found = concept_directions(
        basis,
        embeddings=embeddings,
        covariance=covariance,
        positive=positive,
        negative=negative,
        token_labels=token_labels,
        substitutions=substitutions,
        penalty=penalty,
        limit=directions,
    )
    held_out = _held_out(len(positive), validation_share, seed)
    gates, metrics = train_gates(
        positive=(positive - mean) @ found.filters,
        negative=(negative - mean) @ found.filters,
        held_out=held_out,
        strength=np.zeros_like(found.strength) if basis == "coordinate" else found.strength,
        cost=found.cost,
        weight=1.0 if basis == "coordinate" else 1 / encoder.dimension,
        penalty=penalty,
        seed=seed,
        epochs=epochs,
        learning_rate=learning_rate,
        gate_learning_rate=gate_learning_rate,
        temperature=temperature,
        device=device,
        progress=progress,
    )
    _check_degenerate(gates, encoder.dimension, penalty, allow_degenerate)
    if basis == "coordinate" or not gates.any():
        values, columns = np.zeros(encoder.dimension), np.eye(encoder.dimension)
        values[: len(gates)] = gates
    else:
        values, columns = noise_shape(found, gates, covariance, graded=graded)
    metrics |= {
        "directions_open": float(np.count_nonzero(gates)),
        "directions_candidate": float(len(gates)),
        "energy_open": float(found.strength[gates > 0].sum()),
    }
    if lengths is not None:
        metrics["accuracy_length_only"] = _length_accuracy(*lengths, held_out)
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
    return Mask(values, columns, mean, columns.T @ covariance @ columns, info)


def _checked(positive, negative, embeddings, token_labels, encoder) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    arrays = {"positive": positive, "negative": negative, "embeddings": embeddings}
    for name, array in arrays.items():
        arrays[name] = array = np.ascontiguousarray(array, dtype=np.float64)
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
    if token_labels is not None:
        token_labels = sparse.csr_array(token_labels, dtype=bool)
        if token_labels.shape[0] != len(arrays["embeddings"]):
            raise SparseError(
                f"token_labels has shape {token_labels.shape}; ({len(arrays['embeddings'])}, n_tokens) fits the "
                "embeddings"
            )
    return *arrays.values(), token_labels


def _checked_substitutions(substitutions, encoder: EncoderSpec) -> np.ndarray:
    substitutions = np.asarray(substitutions, dtype=np.float64)
    if substitutions.ndim != 3 or substitutions.shape[2] != encoder.dimension or not substitutions.size:
        raise SparseError(
            f"substitutions has shape {substitutions.shape}; (n_contexts, n_values, {encoder.dimension}) fits"
        )
    if not np.isfinite(substitutions).all():
        raise SparseError("substitutions has values that are not finite: find the texts that encode to them")
    return substitutions


def _held_out(n_pairs: int, share: float, seed: int) -> np.ndarray:
    held_out = np.zeros(n_pairs, dtype=bool)
    count = min(max(1, round(share * n_pairs)), n_pairs - 1)
    held_out[np.random.default_rng(seed).permutation(n_pairs)[:count]] = True
    return held_out


def _check_degenerate(gates: np.ndarray, dimension: int, penalty: float, allowed: bool) -> None:
    if allowed:
        return
    open_gates = np.count_nonzero(gates)
    if open_gates == 0:
        raise SparseError(f"every gate closed: penalty {penalty:g} is too large for this concept, lower it")
    if open_gates == dimension:
        raise SparseError(
            f"all {dimension} gates stayed open, which is isotropic noise: raise penalty (now {penalty:g}), limit "
            "directions, or ask for it with allow_degenerate=True"
        )


def _length_accuracy(positive, negative, held_out: np.ndarray) -> float:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    positive, negative = (np.asarray(a, dtype=np.float64).reshape(len(held_out), -1) for a in (positive, negative))
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(np.vstack([positive[~held_out], negative[~held_out]]), np.repeat([1, 0], np.sum(~held_out)))
    return float(model.score(np.vstack([positive[held_out], negative[held_out]]), np.repeat([1, 0], held_out.sum())))
