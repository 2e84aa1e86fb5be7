"""One attack, measured: positive control, protected figure and floor on the same test records."""

from collections.abc import Sequence
from copy import deepcopy

import numpy as np

from sparse_core.attacks.base import Attack
from sparse_core.attacks.knowledge import PublicKnowledge
from sparse_core.attacks.result import AttackResult, judged_result
from sparse_core.errors import SparseError
from sparse_core.evaluation.checks import check_same_length, check_vectors
from sparse_core.evaluation.leakage import confidence, guess_hits
from sparse_core.evaluation.tokens import row_mask

MIN_TEST_RECORDS = 20


def run_attack(
    attack: Attack,
    *,
    unprotected: np.ndarray,
    protected: np.ndarray,
    labels: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    public: PublicKnowledge,
    seed: int,
    n_bootstrap: int = 1000,
    n_shuffles: int | None = None,
    control: AttackResult | None = None,
    draws: Sequence[np.ndarray] = (),
) -> AttackResult:
    """Train an attack on known records and measure it on others, with its control and its floor.

    Attack records that the mask was not made of, and train on such records too. Label directions
    leave no correlation with the tokens of the very records they were found on, so a linear probe
    trained on those finds nothing in them that is there for everybody else (measured on 8,000 STS
    sentences, 80 label directions, rho 6: ridge recovers 9% of the tokens when trained on the mask's
    own records and 29% when trained on 8,000 others).

    Parameters
    ----------
    attack : Attack
        Unfitted; it is copied and stays so.
    unprotected, protected : float array, shape (n_records, n)
        The same records before and after protection.
    labels : bool array, shape (n_records, n_tokens)
        Their concept tokens.
    train, test : int or bool array
        Records the attacker knows, and records it attacks; see `split_records`.
    public : PublicKnowledge
        About the protected vectors. The positive control gets it without noise.
    seed : int
        Of training, shuffling and resampling.
    n_bootstrap : int
        Resamples of test records, the same for all figures.
    n_shuffles : int, optional
        Shuffled trainings that the floor averages. By default 20 divided by the number of tokens, at
        least 1 and at most 5: what a shuffled attack hits by chance varies more over few tokens.
    control : AttackResult, optional
        This attack on the same records under another protection: its positive control, which is about
        the unprotected vectors, is taken over instead of trained again.
    draws : sequence of float array, each of shape (n_train, n)
        The training records, in rising order, protected again with other noise: an attacker who knows the policy
        simulates that to train on.

    Returns
    -------
    AttackResult

    Raises
    ------
    SparseError
        For unusable or mismatched input, records on both sides, an empty vocabulary, or fewer than
        20 test records that hold a token.
    """
    unprotected = check_vectors(unprotected, "unprotected")
    protected = check_vectors(protected, "protected", dimension=unprotected.shape[1])
    labels = np.asarray(labels, dtype=bool)
    n_records = check_same_length(unprotected=unprotected, protected=protected, labels=labels)
    if labels.ndim != 2 or labels.shape[1] == 0:
        raise SparseError("the vocabulary is empty, so there is nothing to attack; give at least one token")
    in_train, in_test = row_mask(train, n_records, "train"), row_mask(test, n_records, "test")
    if (in_train & in_test).any():
        raise SparseError(
            f"{(in_train & in_test).sum()} records are both in train and in test; attack only unseen ones"
        )
    known, records = np.flatnonzero(in_train), np.flatnonzero(in_test & labels.any(axis=1))
    true = labels[records]
    check_enough_records(len(records))
    n_shuffles = n_shuffles or min(5, max(1, 20 // labels.shape[1]))
    shuffles = np.random.default_rng([seed, 0])

    simulated = {"unprotected": unprotected[known], "draws": draws}

    def measure(
        vectors: np.ndarray, sources: np.ndarray, knowledge: PublicKnowledge, **simulated
    ) -> tuple[np.ndarray, float]:
        fitted = deepcopy(attack).fit(vectors[known], labels[sources], public=knowledge, seed=seed, **simulated)
        scores = fitted.scores(vectors[records])
        return guess_hits(scores, true), confidence(scores, true)

    if control is None:
        hits_unprotected, confidence_unprotected = measure(unprotected, known, public.without_noise())
    else:
        refuse_other_control(control, attack, records, true)
        hits_unprotected, confidence_unprotected = control.hits_unprotected, control.confidence_unprotected
    hits_protected, confidence_protected = measure(protected, known, public, **simulated)
    hits_floor = np.mean(
        [measure(protected, shuffles.permutation(known), public, **simulated)[0] for _ in range(n_shuffles)], axis=0
    )
    return judged_result(
        attack.name,
        records,
        true,
        (hits_unprotected, hits_protected, hits_floor),
        confidences=(confidence_protected, confidence_unprotected),
        n_bootstrap=n_bootstrap,
        seed=seed,
    )


def check_enough_records(n_records: int) -> None:
    """Refuse to attack so few records that a leakage would mean nothing.

    Parameters
    ----------
    n_records : int
        Test records that hold a token of the vocabulary.

    Raises
    ------
    SparseError
        For fewer than 20, telling how wide an interval would be.
    """
    if n_records < MIN_TEST_RECORDS:
        width = "undefined" if n_records == 0 else f"about ±{0.98 / np.sqrt(n_records):.2f} wide"
        raise SparseError(
            f"only {n_records} test records hold a token of the vocabulary: a 95% interval of leakage "
            f"would be {width}; give records until at least {MIN_TEST_RECORDS} do, better 200 (±0.07)"
        )


def refuse_other_control(control: AttackResult, attack: Attack, records: np.ndarray, true: np.ndarray) -> None:
    """Refuse a positive control that is not about the same attack, records and tokens.

    Parameters
    ----------
    control : AttackResult
    attack : Attack
    records : int array, shape (n_test,)
    true : bool array, shape (n_test, n_tokens)

    Raises
    ------
    SparseError
    """
    if (
        control.attack != attack.name
        or not np.array_equal(control.records, records)
        or not np.array_equal(control.true, true)
    ):
        raise SparseError(
            f"the control is {control.attack} on {len(control.records)} records, not {attack.name} on these "
            f"{len(records)}; give a result of the same attack, records and tokens"
        )
