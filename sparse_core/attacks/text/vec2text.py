"""Inversion by hypothesis and correction (Vec2text, Morris et al. 2023).

The decoder is shown the vector, a text that might be the one, and that text's own embedding, and writes a better text;
again and again. One decoder does both steps: in some of its training it is shown no hypothesis, and so learns to make
the first one. In the rest its hypotheses are texts whose vectors lie near, which are wrong in the ways that matter and
cost nothing, as their embeddings are known.

A beam of texts is corrected. Every candidate is encoded as the victim encodes, and those that explain the vector best
under the noise law stay, the old ones among them, so that no round makes the answer less likely.
"""

from __future__ import annotations

import numpy as np

from sparse_core.attacks.text.base import Reconstructions, register_text
from sparse_core.attacks.text.inversion import InversionAttack
from sparse_core.attacks.text.ranking import embedded_candidates
from sparse_core.errors import SparseError
from sparse_core.evaluation.checks import check_vectors
from sparse_core.evaluation.metrics import top_columns, unit_rows

_RECORDS_PER_BLOCK = 512


@register_text
class Vec2TextAttack(InversionAttack):
    """A decoder that is shown the vector, a hypothesis, the hypothesis' embedding and the difference of the two.

    Parameters
    ----------
    rounds : int
        Of correction.
    beam : int
        Texts kept for each vector from one round to the next.
    corrections : int
        Texts drawn for each of them in a round, besides the likeliest one.
    neighbours : int
        In training, a hypothesis is one of so many nearest texts.
    without_hypothesis : float
        Share of training records shown without a hypothesis.
    **options
        As `InversionAttack` takes them; `candidates` are those of the first hypothesis.
    """

    name = "vec2text"
    n_vectors = 3

    def __init__(
        self,
        *,
        rounds: int = 3,
        beam: int = 2,
        corrections: int = 3,
        neighbours: int = 8,
        without_hypothesis: float = 0.4,
        **options,
    ):
        super().__init__(**options)
        counts = {"rounds": rounds, "beam": beam, "corrections": corrections, "neighbours": neighbours}
        wrong = [f"{name}={value}" for name, value in counts.items() if value < 1]
        if wrong:
            raise SparseError(f"{self.name}: {', '.join(wrong)} must be positive")
        if not 0 < without_hypothesis < 1:
            raise SparseError(
                f"{self.name}: without_hypothesis={without_hypothesis} must be between 0 and 1, as the decoder has to "
                "learn both to make a first hypothesis and to correct one"
            )
        self.rounds, self.beam, self.corrections = rounds, beam, corrections
        self.neighbours, self.without_hypothesis = neighbours, without_hypothesis

    def reconstruct(self, vectors: np.ndarray, *, seed: int) -> Reconstructions:
        """See `TextAttack.reconstruct`.

        Raises
        ------
        SparseError
            For unusable vectors or another dimension than trained on.
        """
        vectors = check_vectors(vectors, "the attacked vectors", dimension=len(self._coordinates.center))
        generator = self._generator(seed)
        drawn = self._written(*self._first(vectors), generator, n_drawn=self.candidates)
        beams = self._best(vectors, drawn)
        rounds = [[texts[0] for texts, _ in beams]]
        features = self._features(vectors)
        for _ in range(self.rounds):
            owner = np.repeat(np.arange(len(beams)), [len(texts) for texts, _ in beams])
            hypotheses = [text for texts, _ in beams for text in texts]
            embeddings = np.concatenate([embedded for _, embedded in beams])
            conditions = self._conditions(features[owner], self._features(embeddings))
            corrected = self._written(conditions, self._hypothesis_ids(hypotheses), generator, n_drawn=self.corrections)
            drawn = [[] for _ in beams]
            pool = [list(texts) for texts, _ in beams]
            for row, options in zip(owner, corrected, strict=True):
                pool[row] += options
                drawn[row] += options[1:]
            beams = self._best(vectors, pool)
            rounds.append([texts[0] for texts, _ in beams])
        return Reconstructions(rounds[-1], drawn, rounds)

    def _best(self, vectors: np.ndarray, pool: list[list[str]]) -> list[tuple[list[str], np.ndarray]]:
        """For each vector the texts that explain it best, best first, with their embeddings."""
        width = max(map(len, pool))
        # Beams may hold different numbers of texts; copies of the last one change nothing.
        pool = [[*options, *[options[-1]] * (width - len(options))] for options in pool]
        embedded = embedded_candidates(pool, self._encode)
        found = []
        for row, scores in enumerate(self._ranking.scores(vectors, embedded)):
            places = {pool[row][place]: place for place in reversed(np.argsort(-scores, kind="stable"))}
            kept = sorted(places.values(), key=lambda place, scores=scores: (-scores[place], place))[: self.beam]
            found.append(([pool[row][place] for place in kept], embedded[row, kept]))
        return found

    def _prepare(self, unprotected: np.ndarray, fit: np.ndarray, seed: int) -> None:
        units = unit_rows(unprotected)
        near = []
        for start in range(0, len(units), _RECORDS_PER_BLOCK):
            similarity = units[start : start + _RECORDS_PER_BLOCK] @ units[fit].T
            # A record and its copies would be corrected to themselves.
            similarity[similarity > 1 - 1e-6] = -np.inf
            near.append(fit[top_columns(similarity, self.neighbours)])
        self._near = np.concatenate(near)
        self._own = self._features(unprotected)
        self._choices = np.random.default_rng([seed, 2])

    def _shown(self, rows: np.ndarray, epoch: int) -> tuple[np.ndarray, list[list[int]]]:
        targets, _ = super()._shown(rows, epoch)
        ranks = self._choices.integers(0, self._near.shape[1], len(rows)) if epoch else np.zeros(len(rows), dtype=int)
        nearest = self._near[rows, ranks]
        hypotheses = [self._ids[place] for place in nearest]
        conditions = self._conditions(targets, self._own[nearest])
        without = self._choices.random(len(rows)) < self.without_hypothesis if epoch else np.arange(len(rows)) % 2 == 0
        empty, hypotheses_without = self._nothing(targets[without])
        conditions[without] = empty
        for row, ids in zip(np.flatnonzero(without), hypotheses_without, strict=True):
            hypotheses[row] = ids
        return conditions, hypotheses

    def _first(self, vectors: np.ndarray) -> tuple[np.ndarray, list[list[int]]]:
        return self._nothing(self._features(vectors))

    @staticmethod
    def _conditions(targets: np.ndarray, hypotheses: np.ndarray) -> np.ndarray:
        return np.concatenate([targets, hypotheses, targets - hypotheses], axis=1)

    @staticmethod
    def _nothing(targets: np.ndarray) -> tuple[np.ndarray, list[list[int]]]:
        """What is shown where there is no hypothesis."""
        return np.pad(targets, ((0, 0), (0, 2 * targets.shape[1]))), [[] for _ in targets]

    def _hypothesis_ids(self, texts: list[str]) -> list[list[int]]:
        return [ids[: self.max_tokens] for ids in self._codec.encode(texts)]
