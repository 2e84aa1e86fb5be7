"""What an attack that writes texts came to."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sparse_core.attacks.result import AttackResult
from sparse_core.attacks.text.base import TrainingLog
from sparse_core.errors import SparseError
from sparse_core.evaluation.bootstrap import Interval

SIDES = ("unprotected", "protected", "floor")
EXPECTED_SHARE = 0.5
"""Of the concept tokens that a classifier recovers from unprotected vectors, what a trained decoder should recover."""


@dataclass(frozen=True, eq=False, repr=False)
class Texts:
    """Originals and what was written of them. For masking and showing; never to be stored as they are.

    Parameters
    ----------
    records : int array, shape (n_test,)
    originals, unprotected, protected, floor : list of str, length n_test
    """

    records: np.ndarray
    originals: list[str]
    unprotected: list[str]
    protected: list[str]
    floor: list[str]

    def __repr__(self) -> str:
        return f"Texts(n_records={len(self.records)})"


@dataclass(frozen=True, eq=False)
class TextAttackResult:
    """What one attack wrote.

    Parameters
    ----------
    leakage : AttackResult
        A true token is hit when it stands as a word anywhere in the reconstruction. Unlike an attack that guesses as
        many tokens as there are, a text may name more or fewer. Confidence is the mean over true tokens of the share of
        randomly drawn texts they stand in.
    scores : dict of str to (dict of str to Interval)
        `bleu`, `rouge_l`, `token_f1` and `cosine`, see `reconstruction_scores`; of each the mean over records of
        "unprotected", "protected" and "floor".
    reconstructions : Texts
    training : dict of str to TrainingLog
        Of the three sides.
    """

    leakage: AttackResult
    scores: dict[str, dict[str, Interval]]
    reconstructions: Texts = field(repr=False)
    training: dict[str, TrainingLog]

    def share_of(self, other: AttackResult) -> float:
        """Concept tokens recovered of unprotected vectors, over those that another attack recovers.

        Parameters
        ----------
        other : AttackResult
            `mlc`, say, with the same tokens and at least the same test records.

        Returns
        -------
        float
            On the records that this attack was tested on; nan if the other recovers none of theirs.

        Raises
        ------
        SparseError
            If the other lacks some of the records, or attacks other tokens.
        """
        places = {record: place for place, record in enumerate(other.records)}
        missing = [record for record in self.leakage.records if record not in places]
        if missing:
            raise SparseError(
                f"{other.attack} was not tested on {len(missing)} of the {len(self.leakage.records)} records that "
                f"{self.leakage.attack} was tested on; compare attacks on the same split"
            )
        rows = [places[record] for record in self.leakage.records]
        if not np.array_equal(other.true[rows], self.leakage.true):
            raise SparseError(f"{other.attack} and {self.leakage.attack} attacked other tokens; compare equal ones")
        theirs = other.hits_unprotected[rows].sum()
        return float(self.leakage.hits_unprotected.sum() / theirs) if theirs else float("nan")

    def strength(self, other: AttackResult) -> str:
        """Whether the decoder was trained well enough to be an attacker, in a sentence.

        Parameters
        ----------
        other : AttackResult
            As `share_of` takes it.

        Returns
        -------
        str
            The share of the other attack's tokens, and, below half, what training shows to be missing.
        """
        share, log = self.share_of(other), self.training["unprotected"]
        told = (
            f"{self.leakage.attack} recovers {share:.0%} of the concept tokens that {other.attack} recovers from "
            f"unprotected vectors, after {log.epochs} passes over {log.records:,} records"
        )
        if share >= EXPECTED_SHARE:
            return told + "."
        if log.improving:
            return told + ": its loss on held-out records was still falling, so give it more epochs."
        return (
            told + ": its loss on held-out records has stopped falling, so it needs more training records, or a "
            "pretrained language model as decoder."
        )
