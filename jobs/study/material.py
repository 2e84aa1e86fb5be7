"""What trials share: a corpus read, divided and encoded once, for studies and calibrations alike."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from jobs import sources
from jobs.config import ConceptConfig, MaskTrainingConfig
from jobs.measuring import Material
from jobs.stages import RememberingEncoder, Roles, divide, find_concept, usable_vectors
from jobs.train_mask import Records, mask_inputs
from jobs.utility_tasks import PlannedUtility, encode_queries, plan_utilities, utility_columns
from sparse_core.attacks.run import MIN_TEST_RECORDS, check_enough_records
from sparse_core.concepts import Concept, Span, check_prevalence, concept_fingerprint, concept_tokens
from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.evaluation import TokenLabels, token_labels

PART = 3  # a first look is at every third record


@dataclass(frozen=True, eq=False)
class Prepared:
    """All that trials on one concept and one encoder share; encoded once.

    Attributes
    ----------
    material : Material
        Records with a usable vector, whom they serve, and the concept's tokens.
    mask_rows : int array
        Rows of the material that masks are learned from.
    mask_inputs : dict
        Arguments of `learn_mask` by (basis, removal).
    named : dict
        Further arguments: concept, its salted fingerprint, encoder.
    training : MaskTrainingConfig
    attacks : tuple of str
    draws : int
        Further draws of noise that attackers simulate.
    utility : tuple of PlannedUtility
        With queries encoded.
    unit_norm : bool
    delta : float or None
    quarantined : dict of str to int
    data_fingerprint : str
    """

    material: Material
    mask_rows: np.ndarray
    mask_inputs: dict[tuple[str, str], dict[str, Any]]
    named: dict[str, Any]
    training: MaskTrainingConfig
    attacks: tuple[str, ...]
    draws: int
    utility: tuple[PlannedUtility, ...]
    unit_norm: bool
    delta: float | None
    quarantined: dict[str, int]
    data_fingerprint: str

    @property
    def encoder(self) -> EncoderSpec:
        """The encoder of the vectors."""
        return self.named["encoder"]

    @property
    def concept(self) -> str:
        """Name of the concept."""
        return self.named["concepts"][0]


@dataclass(frozen=True, eq=False)
class Found:
    """A corpus with a concept found in it, before anything is encoded.

    Attributes
    ----------
    source : Source
    corpus : Corpus
    concept : Concept
    spans : list of list of Span
    roles : Roles
    labels : TokenLabels
    utility : tuple of PlannedUtility
    """

    source: sources.Source
    corpus: sources.Corpus
    concept: Concept
    spans: list[list[Span]]
    roles: Roles
    labels: TokenLabels
    utility: tuple[PlannedUtility, ...]


def find(config, concept: ConceptConfig | None = None) -> Found:
    """Read, find the concept, divide, and refuse what could not be measured; parameters as of `prepare`."""
    concept = (concept or config.concept).build()
    source = sources.plan(config.input, columns=utility_columns(config.utility))
    corpus = sources.read_all(source)
    spans = find_concept(corpus, concept, config.input)
    roles = divide(corpus.texts, config.split)
    utility = plan_utilities(config.utility, ids=corpus.ids, columns=corpus.columns, test=roles.test)
    tokens = [concept_tokens(text, found) for text, found in zip(corpus.texts, spans, strict=True)]
    labels = token_labels(tokens, train=roles.attack, min_count=config.min_token_count)
    check_enough_records(int(labels.labels[roles.test].any(axis=1).sum()))
    if getattr(config, "early_stopping", False):
        _refuse_few_to_look_at(int(labels.labels[roles.test[::PART]].any(axis=1).sum()))
    return Found(source, corpus, concept, spans, roles, labels, utility)


def _refuse_few_to_look_at(n_records: int) -> None:
    if n_records < MIN_TEST_RECORDS:
        raise SparseError(
            f"early_stopping: only {n_records} records in a third of the test records hold a token that is attacked, "
            f"and a first look takes {MIN_TEST_RECORDS}. Give more records, or set early_stopping to false."
        )


def prepare(
    config,
    encoder: RememberingEncoder,
    *,
    found: Found | None = None,
    bases: Sequence[str] | None = None,
    removals: Sequence[str] | None = None,
    salt: str | None = None,
) -> Prepared:
    """Encode what trials need, once for all of them.

    Parameters
    ----------
    config : StudyConfig or CalibrateConfig
        Its ``input``, ``split``, ``mask``, ``attacks``, ``draws``, ``utility`` and ``min_token_count``
        count.
    encoder : RememberingEncoder
        Or one of the same methods, such as a `CachedEncoder`.
    found : Found, optional
        From `find`; ``config.concept`` is looked for if not given.
    bases, removals : sequence of str, optional
        Whose masks may be asked for; those of ``config.mask`` if not given.
    salt : str, optional
        Of the concept's fingerprint in masks; drawn if not given.

    Raises
    ------
    SparseError
        If the concept is found in too few records to learn or to attack.
    """
    found = found or find(config)
    corpus, concept, spans, roles, labels = found.corpus, found.concept, found.spans, found.roles, found.labels
    vectors = encoder.encode(corpus.texts, title="Encoding the corpus")
    rows = np.flatnonzero(usable_vectors(vectors))
    mask_rows, train, test = (np.flatnonzero(np.isin(rows, role)) for role in (roles.mask, roles.attack, roles.test))
    material = Material(
        [corpus.ids[row] for row in rows],
        [corpus.texts[row] for row in rows],
        vectors[rows],
        {concept.name: replace(labels, labels=labels.labels[rows])},
        train,
        test,
        {name: [values[row] for row in rows] for name, values in corpus.columns.items()},
    )
    learned = rows[mask_rows]
    records = Records([corpus.texts[row] for row in learned], [spans[row] for row in learned], vectors[learned])
    check_prevalence(records.spans, name=concept.name)
    inputs = {}
    for removal in (config.mask.removal,) if removals is None else removals:
        for basis in (config.mask.basis,) if bases is None else bases:
            settings = config.mask.model_copy(update={"basis": basis, "removal": removal})
            given = mask_inputs(settings, concept, records, encoder)
            if "token_labels" in given:
                given["token_labels"] = sparse.csr_array(given["token_labels"])
            inputs[basis, removal] = given
    salt = salt or secrets.token_hex(16)
    named = {
        "concepts": (concept.name,),
        "concept_fingerprint": concept_fingerprint(concept, salt=salt),
        "salt": salt,
        "encoder": encoder.spec,
    }
    return Prepared(
        material,
        mask_rows,
        inputs,
        named,
        config.mask,
        tuple(config.attacks),
        config.draws,
        encode_queries(found.utility, encoder, dimension=encoder.spec.dimension),
        getattr(config, "unit_norm", False),
        getattr(config, "delta", None),
        dict(corpus.quarantined),
        found.source.fingerprint,
    )
