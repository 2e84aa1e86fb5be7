import dataclasses
import json
import math

import numpy as np
import pytest

from sparse_core.encoders import EncoderSpec
from sparse_core.errors import SparseError
from sparse_core.masks import Mask, MaskInfo
from sparse_core.noise import Key
from sparse_core.policy import Policy

N = 24
ROWS = 40
SPEC = EncoderSpec(
    model="made-up",
    revision=None,
    weights_sha256="a" * 64,
    dimension=N,
    pooling="mean",
    normalize=True,
    max_tokens=64,
)
KEY, OTHER_KEY = Key(bytes(range(32))), Key(bytes(range(1, 33)))
IDS = [f"record-{row}" for row in range(ROWS)]
CONTENTS = [f"What record {row} says." for row in range(ROWS)]


def make_mask(*, open_directions=8, encoder=SPEC, seed=0) -> Mask:
    """Directions of a random basis, of which the first carry noise; signal of falling variance in another."""
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.standard_normal((N, N)))[0]
    turn = np.linalg.qr(generator.standard_normal((N, N)))[0]
    return Mask(
        values=np.where(np.arange(N) < open_directions, 1.0, 0.0),
        basis=basis,
        mean=generator.standard_normal(N) / 10,
        covariance=turn @ np.diag(np.linspace(1, 0.1, N) / N) @ turn.T,
        info=MaskInfo(("made-up",), "f" * 16, "5a17", encoder, "label", 0.02, 0, {}),
    )


MASK = make_mask()


def build(**changes) -> Policy:
    return Policy.build(**({"encoder": SPEC, "mechanism": "mahalanobis", "mask": MASK, "rho": 1.5} | changes))


@pytest.fixture(scope="module")
def embeddings():
    """Drawn as the mask says embeddings are spread."""
    covariance = MASK.basis @ MASK.covariance @ MASK.basis.T
    return np.random.default_rng(1).multivariate_normal(MASK.mean, covariance, ROWS)


@pytest.fixture(scope="module")
def policy():
    return build()


def release(policy, embeddings, rows=slice(None), *, key=KEY, ids=IDS, contents=CONTENTS):
    return policy.release(embeddings[rows], ids=ids[rows], contents=contents[rows], key=key)


ALL_POLICIES = {
    "mahalanobis": {},
    "mahalanobis unit norm": {"unit_norm": True},
    "mahalanobis raw": {"read_out": "none"},
    "mahalanobis raw unit norm": {"read_out": "none", "unit_norm": True},
    "laplace": {"mechanism": "laplace"},
    "laplace without mask": {"mechanism": "laplace", "mask": None, "read_out": "none"},
    "gaussian": {"mechanism": "gaussian"},
    "gaussian of another delta": {"mechanism": "gaussian", "delta": 1e-3},
    "none": {"mechanism": "none", "rho": None},
}
every_policy = pytest.mark.parametrize("changes", ALL_POLICIES.values(), ids=ALL_POLICIES)


# What a release depends on


@every_policy
def test_same_key_id_content_and_policy_release_the_same_vector_in_any_batch(changes, embeddings):
    policy = build(**changes)
    one_by_one = [release(policy, embeddings, slice(row, row + 1)) for row in range(ROWS)]
    np.testing.assert_array_equal(np.concatenate(one_by_one), release(policy, embeddings))


@every_policy
def test_releases_are_finite_float32(changes, embeddings):
    released = release(build(**changes), embeddings)
    assert released.dtype == np.float32 and released.shape == (ROWS, N)
    assert np.isfinite(released).all()


@pytest.mark.parametrize(
    "other",
    [
        {"key": OTHER_KEY},
        {"ids": [f"{record}." for record in IDS]},
        {"contents": [f"{content} " for content in CONTENTS]},
    ],
    ids=["key", "id", "content"],
)
def test_another_key_id_or_content_draws_other_noise_for_every_record(policy, embeddings, other):
    same, different = release(policy, embeddings), release(policy, embeddings, **other)
    assert (same != different).any(axis=1).all()


def test_ids_of_another_type_are_other_records(policy, embeddings):
    as_numbers = release(policy, embeddings, ids=list(range(ROWS)))
    as_text = release(policy, embeddings, ids=[str(row) for row in range(ROWS)])
    assert (as_numbers != as_text).any(axis=1).all()


def test_two_policies_draw_unrelated_noise(embeddings):
    noises = [release(build(epsilon=e, rho=None, read_out="none"), embeddings) - embeddings for e in (20.0, 20.001)]
    assert abs(np.corrcoef(noises[0].ravel(), noises[1].ravel())[0, 1]) < 0.15


def test_releases_lie_on_the_grid(policy, embeddings):
    steps = release(policy, embeddings).astype(np.float64) / policy.law.grid
    np.testing.assert_array_equal(steps, np.rint(steps))


@pytest.mark.parametrize("read_out", ["wiener", "none"])
def test_unit_norm_publishes_vectors_of_norm_one(embeddings, read_out):
    released = release(build(unit_norm=True, read_out=read_out), embeddings)
    np.testing.assert_allclose(np.linalg.norm(released, axis=1), 1, atol=1e-5)


def test_no_mechanism_publishes_embeddings_as_they_are(embeddings):
    released = release(build(mechanism="none", rho=None), embeddings)
    np.testing.assert_allclose(released, embeddings, atol=1e-6)


RAW_SPEC = dataclasses.replace(SPEC, normalize=False)


def test_rho_is_the_length_of_the_noise_against_the_embedding():
    policy, n = build(read_out="none", rho=2.0, embedding_norm=0.5, encoder=RAW_SPEC), 4000
    noise = policy.release(np.zeros((n, N)), ids=range(n), contents=[""] * n, key=KEY)
    assert np.median(np.linalg.norm(noise, axis=1)) == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("strength", [{"rho": 1.5}, {"rho": None, "epsilon": 20.0}])
def test_rho_is_told_for_the_norm_that_the_policy_was_built_for(strength, tmp_path):
    policy = build(encoder=RAW_SPEC, embedding_norm=5.0, **strength)
    policy.save(tmp_path)
    for one in (policy, Policy.load(tmp_path)):
        assert one.guarantee().rho == pytest.approx(one.guarantee().median_noise_norm / 5)
        assert one.guarantee(embedding_norm=1).rho == pytest.approx(one.guarantee().median_noise_norm)


def test_where_no_norm_is_known_no_rho_is_told_or_taken():
    assert build(encoder=RAW_SPEC, rho=None, epsilon=20.0).guarantee().rho is None
    with pytest.raises(SparseError, match="State their median norm in embedding_norm"):
        build(encoder=RAW_SPEC)


def test_another_norm_for_unit_vectors_is_refused():
    with pytest.raises(SparseError, match="embedding_norm is 5, but the embeddings are unit vectors"):
        build(embedding_norm=5)


def test_the_norm_told_does_not_change_the_hash():
    given = {"encoder": RAW_SPEC, "rho": None, "epsilon": 20.0}
    assert build(**given, embedding_norm=5).hash == build(**given).hash


# Subjects, and the second wall


@every_policy
def test_copies_of_a_text_under_one_subject_are_one_vector(changes, embeddings):
    copies = np.repeat(embeddings[:1], 3, axis=0)
    released = build(**changes).release(
        copies, ids=["a", "b", "c"], subjects=["s", "s", "t"], contents=["x"] * 3, key=KEY
    )
    assert np.array_equal(released[0], released[1])
    assert np.array_equal(released[0], released[2]) == (changes.get("mechanism") == "none")


def test_an_embedding_that_moved_by_one_step_of_the_grid_gets_unrelated_noise(embeddings):
    policy = build(read_out="none")
    moved = policy.law.on_grid(embeddings)
    moved[:, 0] += policy.law.grid
    noises = [release(policy, x) - x for x in (policy.law.on_grid(embeddings), moved)]
    assert abs(np.corrcoef(noises[0].ravel(), noises[1].ravel())[0, 1]) < 0.15


@every_policy
def test_bits_that_the_grid_rounds_away_do_not_change_a_release(changes, embeddings):
    policy = build(**changes)
    rounded = policy.law.on_grid(embeddings)
    assert np.array_equal(release(policy, rounded + policy.law.grid / 5), release(policy, rounded))


def test_fingerprints_are_alike_exactly_where_vectors_are(policy, embeddings):
    named = {"subjects": ["s", "s", "t", "s", "s"], "contents": ["x", "x", "x", "y", "x"], "key": KEY}
    vectors = embeddings[[0, 0, 0, 0, 1]]
    released = policy.release(vectors, ids=range(5), **named)
    prints = policy.fingerprints(vectors, **named)
    assert prints.shape == (5, 16) and prints.dtype == np.uint8
    for array in (released, prints):
        assert [np.array_equal(array[0], other) for other in array] == [True, True, False, False, False]


# The hash


@pytest.mark.parametrize(
    "change",
    [
        {"mechanism": "laplace"},
        {"rho": 1.6},
        {"rho": None, "epsilon": 20.0},
        {"floor": 0.3},
        {"read_out": "none"},
        {"unit_norm": True},
        {"mask": make_mask(open_directions=9)},
        {"mask": make_mask(seed=1)},
        {"mask": dataclasses.replace(MASK, mean=MASK.mean + 1e-9)},
        {"mask": dataclasses.replace(MASK, covariance=MASK.covariance * (1 + 1e-9))},
        {"encoder": dataclasses.replace(SPEC, weights_sha256="b" * 64)},
        {"encoder": dataclasses.replace(SPEC, prompt="query: ")},
    ],
    ids=lambda change: ", ".join(change),
)
def test_whatever_decides_a_release_changes_the_hash(policy, change):
    assert build(**change).hash != policy.hash


def test_delta_decides_the_hash_of_gaussian_noise():
    loose, strict = (build(mechanism="gaussian", delta=delta) for delta in (1e-3, 1e-9))
    assert len({loose.hash, strict.hash, build(mechanism="gaussian").hash}) == 3
    assert build(mechanism="gaussian", delta=1e-6).hash == build(mechanism="gaussian").hash


def test_the_name_of_the_model_does_not_change_the_hash(policy):
    assert build(encoder=dataclasses.replace(SPEC, model="/models/copy", revision="main")).hash == policy.hash


def test_what_is_only_told_of_a_mask_does_not_change_the_hash(policy):
    told = dataclasses.replace(MASK.info, concepts=("renamed",), metrics={"accuracy": 0.9})
    assert build(mask=dataclasses.replace(MASK, info=told)).hash == policy.hash


def test_rho_and_the_epsilon_it_stands_for_are_one_policy(policy):
    assert build(rho=None, epsilon=policy.epsilon).hash == policy.hash


def test_the_hash_is_64_hexadecimal_digits(policy):
    assert len(policy.hash) == 64 and set(policy.hash) <= set("0123456789abcdef")


# On disk


@every_policy
def test_a_policy_comes_back_with_its_hash(changes, tmp_path):
    policy = build(**changes)
    policy.save(tmp_path)
    assert Policy.load(tmp_path).hash == policy.hash


@every_policy
def test_a_policy_from_disk_releases_the_same_vectors(changes, tmp_path, embeddings):
    policy = build(**changes)
    policy.save(tmp_path)
    np.testing.assert_array_equal(release(Policy.load(tmp_path), embeddings), release(policy, embeddings))


def test_saving_twice_writes_the_same_bytes_and_no_other_file(policy, tmp_path):
    policy.save(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    policy.save(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in before) == [
        "mask.json",
        "mask.safetensors",
        "policy.json",
        "read_out.safetensors",
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mechanism", "laplace"),
        ("epsilon", 1.0),
        ("floor", 0.9),
        ("read_out", "none"),
        ("unit_norm", True),
        ("encoder", dataclasses.asdict(SPEC) | {"weights_sha256": "b" * 64}),
        ("hash", "0" * 64),
    ],
)
def test_a_policy_changed_on_disk_is_refused(policy, tmp_path, field, value):
    policy.save(tmp_path)
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(SparseError, match="was changed after it was written"):
        Policy.load(tmp_path)


@pytest.mark.parametrize("delta", [1e-3, None])
def test_a_delta_changed_on_disk_is_refused(tmp_path, delta):
    build(mechanism="gaussian").save(tmp_path)
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"delta": delta}))
    with pytest.raises(SparseError, match="was changed after it was written"):
        Policy.load(tmp_path)


def test_a_policy_whose_mask_was_exchanged_is_refused(policy, tmp_path):
    policy.save(tmp_path)
    make_mask(seed=1).save(tmp_path / "mask")
    with pytest.raises(SparseError, match="was changed after it was written"):
        Policy.load(tmp_path)


def test_a_policy_whose_read_out_was_changed_is_refused(policy, tmp_path):
    policy.save(tmp_path)
    path = tmp_path / "read_out.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(SparseError, match="was changed after it was written"):
        Policy.load(tmp_path)


@pytest.mark.parametrize("name", ["policy.json", "read_out.safetensors", "mask/mask.safetensors"])
def test_a_policy_without_one_of_its_files_is_told_so(policy, tmp_path, name):
    policy.save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(SparseError, match="missing"):
        Policy.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"schema_version": 2, "mask": null}', "\ufffd"])
def test_a_damaged_policy_is_refused_by_name(tmp_path, content):
    (tmp_path / "policy.json").write_text(content)
    with pytest.raises(SparseError, match=r"policy\.json is not a policy"):
        Policy.load(tmp_path)


def test_a_policy_of_an_earlier_schema_is_refused_with_what_to_do(policy, tmp_path):
    policy.save(tmp_path)
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 1}))
    with pytest.raises(SparseError, match="schema version 1, this library reads version 2: publish anew"):
        Policy.load(tmp_path)


def test_a_directory_without_a_policy_is_told_so(tmp_path):
    with pytest.raises(SparseError, match="There is no complete policy"):
        Policy.load(tmp_path)


@pytest.mark.parametrize("name", ["mahalanobis", "laplace without mask"])
def test_a_policy_of_another_encoder_is_refused(tmp_path, name):
    build(**ALL_POLICIES[name]).save(tmp_path)
    with pytest.raises(SparseError, match="weights_sha256"):
        Policy.load(tmp_path, encoder=dataclasses.replace(SPEC, weights_sha256="b" * 64))


@pytest.mark.parametrize("name", ["mahalanobis", "laplace without mask"])
def test_the_same_encoder_under_another_name_is_accepted(tmp_path, name):
    policy = build(**ALL_POLICIES[name])
    policy.save(tmp_path)
    assert Policy.load(tmp_path, encoder=dataclasses.replace(SPEC, model="renamed")).hash == policy.hash


@every_policy
def test_the_file_is_json_that_any_reader_reads(changes, tmp_path):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    build(**changes).save(tmp_path)
    json.loads((tmp_path / "policy.json").read_text(), parse_constant=refuse)


# The read-out


def test_the_read_out_brings_vectors_nearer_to_the_originals(policy, embeddings):
    noised = release(build(read_out="none"), embeddings)
    read = release(policy, embeddings)
    assert ((read - embeddings) ** 2).sum() < 0.8 * ((noised - embeddings) ** 2).sum()


def test_the_read_out_brings_vectors_nearer_than_the_mean_is(policy, embeddings):
    read = release(policy, embeddings)
    assert ((read - embeddings) ** 2).sum() < 0.8 * ((MASK.mean - embeddings) ** 2).sum()


@pytest.mark.parametrize("mechanism", ["mahalanobis", "laplace", "gaussian"])
def test_the_read_out_undone_gives_the_noised_embeddings(mechanism, embeddings):
    from sparse_core.noise import record_uniforms

    policy = build(mechanism=mechanism)
    uniforms = record_uniforms(
        KEY,
        subjects=IDS,
        contents=CONTENTS,
        embeddings=policy.law.on_grid(embeddings),
        policy_hash=policy.hash,
        count=policy.law.uniforms_per_record,
    )
    noised = policy.law.release(embeddings, uniforms)
    undone = policy.undo_read_out(release(policy, embeddings))
    np.testing.assert_allclose(undone, noised, atol=1e-3)
    assert np.abs(noised - release(policy, embeddings)).max() > 0.1


def test_without_a_read_out_there_is_nothing_to_undo(embeddings):
    released = release(build(read_out="none"), embeddings)
    np.testing.assert_array_equal(build(read_out="none").undo_read_out(released), released)


def test_an_attacker_is_told_the_noise_of_every_direction(embeddings):
    policy, n = build(read_out="none"), 4000
    public = policy.public_knowledge()
    noise = policy.release(np.zeros((n, N)), ids=range(n), contents=[""] * n, key=KEY) @ public.basis
    np.testing.assert_allclose((noise**2).mean(axis=0), public.noise_variance, rtol=0.15)


# On the sphere


@pytest.fixture(scope="module")
def spherical():
    """Unit vectors, half of them for a mask with their mean and covariance, half to release."""
    generator = np.random.default_rng(2)
    vectors = generator.standard_normal((4000, N)) * np.linspace(1, 0.1, N) + np.linspace(0.6, 0, N)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    known, released = vectors[:2000], vectors[2000:]
    covariance = MASK.basis.T @ np.cov(known, rowvar=False) @ MASK.basis
    return dataclasses.replace(MASK, mean=known.mean(axis=0), covariance=covariance), released


def released_on_the_sphere(mask, vectors, **changes):
    policy = build(mechanism="purkayastha", mask=mask, **({"rho": 1.2} | changes))
    ids = list(range(len(vectors)))
    return policy, policy.release(vectors, ids=ids, contents=[""] * len(ids), key=KEY).astype(float)


def squared_error(found, vectors):
    return ((found - vectors) ** 2).sum(axis=1).mean()


@pytest.mark.parametrize("rho", [0.5, 0.9, 1.2, 1.35])
def test_the_read_out_of_directions_beats_releases_and_every_multiple_of_them(spherical, rho):
    mask, vectors = spherical
    _, raw = released_on_the_sphere(mask, vectors, rho=rho, read_out="none")
    _, read = released_on_the_sphere(mask, vectors, rho=rho)
    scale = (raw * vectors).sum() / (raw**2).sum()
    best = squared_error(scale * raw, vectors)
    assert squared_error(read, vectors) < 0.95 * best < squared_error(raw, vectors)
    assert squared_error(read, vectors) < squared_error(mask.mean, vectors)


def test_the_read_out_of_directions_is_the_best_linear_estimate(spherical):
    mask, vectors = spherical
    _, raw = released_on_the_sphere(mask, vectors, read_out="none")
    _, read = released_on_the_sphere(mask, vectors)
    design = np.column_stack([raw, np.ones(len(raw))])
    fitted = design @ np.linalg.lstsq(design, vectors, rcond=None)[0]
    assert squared_error(read, vectors) < 1.05 * squared_error(fitted, vectors)


@pytest.mark.parametrize("changes", [{}, {"read_out": "none"}], ids=["wiener", "raw"])
def test_whoever_undoes_a_direction_has_the_embedding_plus_the_noise_that_was_told(spherical, changes):
    mask, vectors = spherical
    policy, released = released_on_the_sphere(mask, vectors, **changes)
    undone, public = policy.undo_read_out(released), policy.public_knowledge()
    assert (undone * vectors).sum(axis=1).mean() == pytest.approx(1, abs=0.03)
    assert squared_error(undone, vectors) == pytest.approx(public.noise_variance.sum(), rel=0.03)


# The guarantee


def test_the_guarantee_is_the_mechanisms(policy):
    guarantee = policy.guarantee()
    assert (guarantee.mechanism, guarantee.epsilon) == ("mahalanobis", policy.epsilon)
    assert guarantee.rho == pytest.approx(1.5)


def test_epsilon_euclidean_is_epsilon_in_the_least_noised_direction():
    policy = build(floor=0.25)
    weights = 0.75 * MASK.values / MASK.values.mean() + 0.25
    assert policy.guarantee().epsilon_euclidean == pytest.approx(policy.epsilon / math.sqrt(weights.min()))


def test_laplace_promises_one_epsilon_in_every_direction():
    guarantee = build(mechanism="laplace").guarantee()
    assert guarantee.epsilon_euclidean == guarantee.epsilon


def test_gaussian_noise_promises_its_epsilon_but_for_delta(tmp_path):
    policy = build(mechanism="gaussian", delta=1e-4)
    policy.save(tmp_path)
    for told in (policy.guarantee(), Policy.load(tmp_path).guarantee()):
        assert told.delta == 1e-4 and told.rho == pytest.approx(1.5)
    assert policy.epsilon < build(mechanism="gaussian", delta=1e-8).epsilon


def test_no_mechanism_promises_nothing():
    policy = build(mechanism="none", rho=None)
    assert policy.epsilon is None
    assert policy.guarantee().epsilon == math.inf


@pytest.mark.parametrize(("mechanism", "name"), [("mahalanobis", "label"), ("laplace", "isotropic"), ("none", "none")])
def test_the_basis_is_the_masks_only_where_the_mask_shapes_noise(mechanism, name):
    rho = None if mechanism == "none" else 1.0
    assert build(mechanism=mechanism, rho=rho).basis_name == name


# What is refused


def test_mahalanobis_needs_a_mask():
    with pytest.raises(SparseError, match="needs a mask"):
        build(mask=None, read_out="none")


def test_the_wiener_read_out_needs_a_mask():
    with pytest.raises(SparseError, match="Give a mask, or set read_out to 'none'"):
        build(mechanism="laplace", mask=None)


def test_a_mask_of_another_dimension_is_refused_naming_both():
    with pytest.raises(SparseError, match="24 dimensions, the encoder 384"):
        build(encoder=dataclasses.replace(SPEC, dimension=384))


@pytest.mark.parametrize("strength", [{"rho": 1.0, "epsilon": 1.0}, {"rho": None}, {"rho": -1.0}, {"rho": math.nan}])
def test_a_strength_that_is_not_one_positive_number_is_refused(strength):
    with pytest.raises(SparseError, match=r"epsilon|rho"):
        build(**strength)


def test_delta_of_another_mechanism_is_refused():
    with pytest.raises(SparseError, match="delta belongs to 'gaussian'"):
        build(delta=1e-6)


def test_a_delta_under_which_epsilon_is_nothing_is_refused():
    with pytest.raises(SparseError, match="smaller delta"):
        build(mechanism="gaussian", rho=500, delta=0.5)


@pytest.mark.parametrize("changes", [{"read_out": "magic"}, {"mechanism": "magic"}])
def test_an_unknown_name_is_refused(changes):
    with pytest.raises(SparseError, match="magic"):
        build(**changes)


def test_embeddings_of_another_dimension_are_refused(policy):
    with pytest.raises(SparseError, match="24"):
        policy.release(np.ones((2, 23)), ids=[1, 2], contents=["a", "b"], key=KEY)


def test_embeddings_that_are_not_numbers_are_refused(policy):
    with pytest.raises(SparseError, match=r"(?i)nan|finite"):
        policy.release(np.full((1, N), np.nan), ids=[1], contents=["a"], key=KEY)


@pytest.mark.parametrize(("ids", "contents"), [([1], ["a", "b"]), ([1, 2], ["a"])])
def test_every_record_needs_an_id_and_a_content(policy, ids, contents):
    with pytest.raises(SparseError):
        policy.release(np.ones((2, N)), ids=ids, contents=contents, key=KEY)
