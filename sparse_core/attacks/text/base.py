"""The contract of an attack that writes texts, and the registry that names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from sparse_core.attacks.base import with_draws
from sparse_core.attacks.knowledge import PublicKnowledge
from sparse_core.errors import SparseError
from sparse_core.evaluation.checks import check_same_length, check_vectors

Encode = Callable[[list[str]], np.ndarray]
LogLikelihood = Callable[[np.ndarray, np.ndarray], np.ndarray]
Progress = Callable[[int, int], None]
MIN_TRAINING_RECORDS = 50


@dataclass(frozen=True)
class Reconstructions:
    """What an attack wrote.

    Parameters
    ----------
    texts : list of str
        One for each vector: the attack's answer.
    drawn : list of (list of str)
        For each vector, texts drawn at random: how often a word stands in them is how sure the attack is of it.
    rounds : list of (list of str)
        The answers after each round of correction; the last are `texts`.
    """

    texts: list[str]
    drawn: list[list[str]]
    rounds: list[list[str]]


@dataclass(frozen=True)
class TrainingLog:
    """What training came to.

    Parameters
    ----------
    records, epochs, steps : int
        Records learned from; passes over them and optimizer steps, up to where it stopped.
    cpu_seconds : float
        Of the process; elapsed seconds may be fewer or more.
    validation_losses : tuple of float
        Nats a token on held-out training records, after each epoch. The weights kept are those of the lowest.
    improving : bool
        Whether the last epoch was the best, so that more of them would probably help.
    """

    records: int
    epochs: int
    steps: int
    cpu_seconds: float
    validation_losses: tuple[float, ...]
    improving: bool


class TextAttack(Protocol):
    """Something that learns to write the texts of protected vectors.

    Attributes
    ----------
    name : str
        The registry's name for it.
    log : TrainingLog
        Once fitted: what training came to.
    """

    name: str
    log: TrainingLog

    def fit(
        self,
        vectors: np.ndarray,
        texts: Sequence[str],
        *,
        unprotected: np.ndarray,
        public: PublicKnowledge,
        encode: Encode,
        seed: int,
        draws: Sequence[np.ndarray] = (),
        log_likelihood: LogLikelihood | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learn from protected vectors whose texts the attacker knows.

        Parameters
        ----------
        vectors : float array, shape (n_records, n)
        texts : sequence of str, length n_records
        unprotected : float array, shape (n_records, n)
            The texts' own embeddings, which whoever has the encoder can compute.
        public : PublicKnowledge
        encode : callable
            The victim's encoder, texts to float array, shape (n_texts, n).
        seed : int
            Decides everything drawn in training.
        draws : sequence of float array, each of shape (n_records, n)
            The same records protected again with other noise.
        log_likelihood : callable, optional
            The noise law, from vectors and embeddings, shape (n_rows, n), to log-densities, shape (n_rows,).
        progress : callable, optional
            Called as ``progress(epoch, epochs)``.

        Returns
        -------
        TextAttack
            Itself, fitted.
        """
        ...

    def reconstruct(self, vectors: np.ndarray, *, seed: int) -> Reconstructions:
        """Write the texts of vectors.

        Parameters
        ----------
        vectors : float array, shape (n_records, n)
        seed : int
            Of the texts drawn.

        Returns
        -------
        Reconstructions
        """
        ...

    def check(self) -> None:
        """Refuse what cannot run here, such as an absent device, before anything is computed.

        Raises
        ------
        SparseError
        """
        ...

    def shortened(self, share: float) -> Self:
        """The same attack, unfitted, with that share of the passes over the data."""
        ...


TEXT_ATTACKS: dict[str, Callable[..., TextAttack]] = {}


def register_text(attack_class: type) -> type:
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
    TEXT_ATTACKS[attack_class.name] = attack_class
    return attack_class


def build_text_attack(name: str, **options) -> TextAttack:
    """An unfitted attack by name.

    Parameters
    ----------
    name : str
        A key of `TEXT_ATTACKS`.
    **options
        The attack's own keyword options.

    Returns
    -------
    TextAttack

    Raises
    ------
    SparseError
        For an unknown name or option.
    """
    if name not in TEXT_ATTACKS:
        raise SparseError(f"unknown text attack {name!r}; known are {', '.join(sorted(TEXT_ATTACKS))}")
    try:
        return TEXT_ATTACKS[name](**options)
    except TypeError as error:
        raise SparseError(f"text attack {name} does not take these options: {error}") from None


def check_text_training(
    vectors: np.ndarray, texts: Sequence[str], unprotected: np.ndarray, draws: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Training data of a text attack, checked.

    Parameters
    ----------
    vectors, unprotected : array-like, shape (n_records, n)
    texts : sequence of str, length n_records
    draws : sequence of array-like, each of shape (n_records, n)

    Returns
    -------
    list of float array, each of shape (n_records, n)
        The vectors, then the further draws.

    Raises
    ------
    SparseError
        For unusable vectors, columns of another length, or fewer than 50 records.
    """
    vectors = check_vectors(vectors, "the attack's training vectors")
    unprotected = check_vectors(unprotected, "unprotected training vectors", dimension=vectors.shape[1])
    n_records = check_same_length(vectors=vectors, texts=texts, unprotected=unprotected)
    if n_records < MIN_TRAINING_RECORDS:
        raise SparseError(
            f"{n_records} training records are too few to learn to write from; give {MIN_TRAINING_RECORDS} at least, "
            "some thousands for an attack worth its name"
        )
    return with_draws(vectors, draws)
