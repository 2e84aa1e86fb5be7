"""Attackers that write the hidden texts: what they recover of each row, and what of it may be shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from jobs.compared import Protected
from jobs.config import TextAttackConfig
from jobs.measuring import Material, simulated_draws
from jobs.stages import RememberingEncoder
from jobs.stored_vectors import turned_back
from sparse_core.attacks import AttackResult, PublicKnowledge, estimate_knowledge
from sparse_core.attacks.text import TextAttackResult, build_text_attack, run_text_attack
from sparse_core.concepts import Concept, Span, find_spans, remove_spans
from sparse_core.concepts.words import placed_words

_HIDDEN = "▇▇▇"


@dataclass(frozen=True)
class Secrets:
    """What must not be shown of a text: where the corpus holds the concepts, and how they are found elsewhere."""

    concepts: Sequence[Concept]
    tokens: frozenset[str]

    def hide(self, text: str) -> str:
        """The text with every concept term masked."""
        # An entity model was asked of the corpus; what it found there are tokens here.
        known = [replace(one, entity_types=(), entity_model=None) for one in self.concepts if one.terms or one.patterns]
        spans = [span for concept in known for span in find_spans([text], concept)[0]]
        spans += [Span(start, end) for word, start, end in placed_words(text) if word in self.tokens]
        return remove_spans(text, spans, how="placeholder", placeholder=_HIDDEN)


def attack_texts(
    names: Sequence[str],
    config: TextAttackConfig,
    protected: Sequence[Protected],
    material: Material,
    *,
    concept: str,
    encoder: RememberingEncoder,
    draws: int,
    seed: int,
    advance: Callable[[int, int, str], None],
) -> dict[str, list[TextAttackResult]]:
    """Every attack on every protection, one after the other, as each keeps all cores busy.

    Parameters
    ----------
    names : sequence of str
        Of `sparse_core.attacks.text.TEXT_ATTACKS`.
    config : TextAttackConfig
    protected : sequence of Protected
    material : Material
    concept : str
        Whose tokens are looked for in what is written.
    encoder : RememberingEncoder
    draws, seed : int
        As in `jobs.measuring.attack_all`.
    advance : callable
        Called as ``advance(done, total, detail)``.

    Returns
    -------
    dict
        Row, then results in the order of `names`.
    """
    tokens, found, controls = material.concepts[concept], {}, {}
    for number, row in enumerate(protected):
        noised, public = _seen(row, material)
        law = None if row.policy is None or row.policy.mechanism == "none" else row.policy.law
        for name in names:
            done, total = len(names) * number + len(found.get(row.name, ())), len(names) * len(protected)
            result = run_text_attack(
                build_text_attack(name, **config.options),
                unprotected=material.vectors,
                protected=noised,
                texts=material.texts,
                labels=tokens.labels,
                vocabulary=tokens.vocabulary,
                train=material.train,
                test=material.test,
                public=public,
                encode=encoder.encode_passing,
                seed=seed,
                max_test_records=config.records,
                draws=simulated_draws(row, material, draws),
                log_likelihood=law and law.log_likelihood,
                control=controls.get(name),
                progress=lambda side, epoch, epochs, done=done, total=total, name=name, row=row: advance(
                    done, total, f"{name} on {row.name}, {side}: pass {epoch} of {epochs}"
                ),
            )
            controls.setdefault(name, result)
            found.setdefault(row.name, []).append(result)
            advance(done + 1, total, "")
    return found


def _seen(row: Protected, material: Material) -> tuple[np.ndarray, PublicKnowledge]:
    """Vectors as an attacker takes them, and what it knows of their noise; without a policy as far as it can tell."""
    if row.policy is not None:
        return row.noised, row.knowledge[0]
    turned = turned_back(row.noised, material.vectors, known=material.train)
    return turned, estimate_knowledge(material.vectors[material.train], turned[material.train])


def as_details(result: TextAttackResult, *, compared: AttackResult | None, secrets: Secrets, examples: int) -> dict:
    """What ``summary.json`` holds of a result: scores, and texts only if they are asked for, with terms masked."""
    texts = result.reconstructions
    sides = ("originals", "unprotected", "protected")
    shown = [
        {side.removesuffix("s"): secrets.hide(getattr(texts, side)[place]) for side in sides}
        for place in range(min(examples, len(texts.records)))
    ]
    return {
        **{
            name: {side: asdict(interval) for side, interval in by_side.items()}
            for name, by_side in result.scores.items()
        },
        "n_records": len(texts.records),
        "epochs": result.training["protected"].epochs,
        "strength": None if compared is None else result.strength(compared),
        "examples": shown,
    }
