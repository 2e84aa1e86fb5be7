"""The contract of an attack, and the registry that names them."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from sparse_core.attacks.coordinates import TRANSFORMS
from sparse_core.attacks.knowledge import PublicKnowledge
from sparse_core.errors import SparseError
from sparse_core.evaluation.checks import check_same_length, check_vectors


@runtime_checkable
class Attack(Protocol):
    """Something that learns to read concept tokens out of protected vectors.

    Attributes
    ----------
    name : str
        The registry's name for it.
    """

    name: str

    def fit(
        self,
        vectors: np.ndarray,
        labels: np.ndarray,
        *,
        public: PublicKnowledge,
        seed: int,
        unprotected: np.ndarray | None = None,
        draws: Sequence[np.ndarray] = (),
    ) -> "Attack":
        """Learn from protected vectors whose tokens the attacker knows.

        Parameters
        ----------
        vectors : float array, shape (n_records, n)
        labels : bool array, shape (n_records, n_tokens)
        public : PublicKnowledge
        seed : int
            Decides everything drawn in training, so that fitting twice gives the same attack.
        unprotected : float array, shape (n_records, n), optional
            The same records unprotected: who knows a text and the encoder knows its vector.
        draws : sequence of float array, each of shape (n_records, n)
            The same records protected again with other noise, as whoever knows the policy can simulate.

        Returns
        -------
        Attack
            Itself, fitted.
        """
        ...

    def scores(self, vectors: np.ndarray) -> np.ndarray:
        """Probability of each token for each vector.

        Parameters
        ----------
        vectors : float array, shape (n_records, n)

        Returns
        -------
        float array, shape (n_records, n_tokens)
            In [0, 1]; only the order within a record decides the guesses.
        """
        ...


ATTACKS: dict[str, Callable[..., Attack]] = {}


def register(attack_class: type) -> type:
    """Class decorator: make an attack buildable by its `name`.

    Parameters
    ----------
    attack_class : type
        With a class attribute `name`.

    Returns
    -------
    type
        The same class.
    """
    ATTACKS[attack_class.name] = attack_class
    return attack_class


def build_attack(name: str, **options) -> Attack:
    """An unfitted attack by name.

    Parameters
    ----------
    name : str
        A key of `ATTACKS`.
    **options
        The attack's own keyword options.

    Returns
    -------
    Attack

    Raises
    ------
    SparseError
        For an unknown name or option.
    """
    if name not in ATTACKS:
        raise SparseError(f"unknown attack {name!r}; known are {', '.join(sorted(ATTACKS))}")
    try:
        return ATTACKS[name](**options)
    except TypeError as error:
        raise SparseError(f"attack {name} does not take these options: {error}") from None


def check_transforms(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of `Coordinates.transforms`, checked.

    Parameters
    ----------
    names : tuple of str

    Returns
    -------
    tuple of str

    Raises
    ------
    SparseError
        For none or an unknown one.
    """
    unknown = [name for name in names if name not in TRANSFORMS]
    if unknown or not names:
        raise SparseError(f"coordinates {unknown} are unknown; give some of {', '.join(TRANSFORMS)}")
    return tuple(names)


def check_training(
    vectors: np.ndarray, labels: np.ndarray, draws: Sequence[np.ndarray] = ()
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Training data of an attack, checked.

    Parameters
    ----------
    vectors : array-like, shape (n_records, n)
    labels : array-like, shape (n_records, n_tokens)
    draws : sequence of array-like, each of shape (n_records, n)

    Returns
    -------
    vectors : float array, shape (n_records, n)
    labels : bool array, shape (n_records, n_tokens)
    draws : list of float array
        The vectors, then the further draws of the same records.

    Raises
    ------
    SparseError
        For unusable vectors, another number of labels, an empty vocabulary, or fewer than 10 records.
    """
    vectors = check_vectors(vectors, "the attack's training vectors")
    labels = np.asarray(labels, dtype=bool)
    n_records = check_same_length(vectors=vectors, labels=labels)
    if labels.ndim != 2 or labels.shape[1] == 0:
        raise SparseError("the vocabulary is empty, so there is nothing to attack; give at least one token")
    if n_records < 10:
        raise SparseError(f"{n_records} training records are too few to train and validate an attack; give 10 or more")
    return vectors, labels, with_draws(vectors, draws)


def with_draws(vectors: np.ndarray, draws: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Training vectors, then further draws of the same records, checked.

    Parameters
    ----------
    vectors : float array, shape (n_records, n)
    draws : sequence of array-like, each of shape (n_records, n)

    Returns
    -------
    list of float array, each of shape (n_records, n)

    Raises
    ------
    SparseError
        For an unusable draw, or one of other records.
    """
    checked = [vectors]
    for draw in draws:
        checked.append(check_vectors(draw, "a further draw of the training vectors", dimension=vectors.shape[1]))
        check_same_length(vectors=vectors, draw=checked[-1])
    return checked


def validation_folds(
    labels: np.ndarray, *, n_folds: int, seed: int, max_judged: int = 1500
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Divide training records into parts to choose an attack's options on.

    Parameters
    ----------
    labels : bool array, shape (n_records, n_tokens)
        Records with and without tokens are spread evenly over the folds.
    n_folds : int
        At least 2.
    seed : int
    max_judged : int
        Most records to choose options on in one fold; the rest of the fold stays unused in it.

    Returns
    -------
    list of (fit, judged) int arrays
        For each fold, the rows outside it, and rows inside it that hold a token. `judged` is empty
        where no training record holds one.
    """
    generator = np.random.default_rng(seed)
    bearing = labels.any(axis=1)
    rows = np.concatenate([generator.permutation(np.flatnonzero(side)) for side in (bearing, ~bearing)])
    folds = [np.sort(rows[number::n_folds]) for number in range(n_folds)]
    everything = np.arange(len(labels))
    return [(np.setdiff1d(everything, fold), generator.permutation(fold[bearing[fold]])[:max_judged]) for fold in folds]
