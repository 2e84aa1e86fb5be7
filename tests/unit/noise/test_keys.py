import base64
import copy
import os
import pickle
import stat
import string
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_core.errors import SparseError
from sparse_core.noise import KEY_ENVIRONMENT_VARIABLE, Key, write_new_key

SECRET = bytes(range(32))


def write_key_file(path, text, mode=0o600):
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_new_key_file_is_private_and_reads_back_as_the_same_key(tmp_path):
    written = write_new_key(tmp_path / "sparse.key")
    assert stat.S_IMODE((tmp_path / "sparse.key").stat().st_mode) == 0o600
    assert Key.from_file(tmp_path / "sparse.key") == written


def test_two_new_keys_differ(tmp_path):
    assert write_new_key(tmp_path / "a") != write_new_key(tmp_path / "b")
    assert Key.ephemeral() != Key.ephemeral()


def test_an_existing_key_file_is_never_overwritten(tmp_path):
    path = tmp_path / "sparse.key"
    first = write_new_key(path)
    with pytest.raises(SparseError, match="not overwritten"):
        write_new_key(path)
    assert Key.from_file(path) == first


def test_writing_into_a_missing_directory_says_so(tmp_path):
    with pytest.raises(SparseError, match="Cannot write"):
        write_new_key(tmp_path / "absent" / "sparse.key")


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o620, 0o602])
def test_a_key_file_open_to_others_is_refused_with_the_command_that_closes_it(tmp_path, mode):
    path = write_key_file(tmp_path / "sparse.key", SECRET.hex(), mode)
    with pytest.raises(SparseError, match="chmod 600"):
        Key.from_file(path)


def test_a_missing_key_file_names_the_command_that_makes_one(tmp_path):
    with pytest.raises(SparseError, match="sparse key new"):
        Key.from_file(tmp_path / "absent.key")


def test_a_directory_is_not_a_key_file(tmp_path):
    with pytest.raises(SparseError, match="key file"):
        Key.from_file(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        f"sparse-key-v1 {SECRET.hex()}\n",
        SECRET.hex(),
        SECRET.hex().upper() + "\n",
        f"\r\n{SECRET.hex()}\r\n",
        f"\ufeffsparse-key-v1 {SECRET.hex()}\r\n",
        "base64:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n",
    ],
)
def test_a_key_is_read_from_the_file_format_bare_hex_or_prefixed_base64(tmp_path, monkeypatch, text):
    assert Key.from_file(write_key_file(tmp_path / "sparse.key", text)) == Key(SECRET)
    monkeypatch.setenv(KEY_ENVIRONMENT_VARIABLE, text)
    assert Key.from_environment() == Key(SECRET)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("correcthorsebatterystaplecorrecthorsebattery", "passphrase"),
        ("base64:" + base64.b64encode(b"correct horse battery staple, twice").decode(), "is text"),
        (b"correct horse battery staple, twice".hex(), "is text"),
        ("31415926535897932384626433832795028841971693993751058209749445923078", "decimal digits"),
        ("deadbeef" * 8, "few byte values"),
        (bytes(range(16)).hex() * 2, "repeats one block"),
        (bytes(range(20)).hex() * 2, "repeats one block"),
        (SECRET.hex()[:-1], "odd number"),
        (SECRET.hex()[:60], "30 bytes"),
        (f"{SECRET.hex()}\n{SECRET.hex()}", "one key on one line"),
        (f"{SECRET.hex()}\n# made in May", "one key on one line"),
        (f"{SECRET.hex()[:32]} {SECRET.hex()[32:]}", "one key on one line"),
        (f"sparse-key-v1 base64:{base64.b64encode(SECRET).decode()}", "neither"),
        (f"sparse-key-v2 {SECRET.hex()}", "one key on one line"),
        ("sparse-key-v1", "one key on one line"),
        ("base64:" + base64.b64encode(SECRET).decode()[:-3] + "!", "neither"),
    ],
)
def test_what_was_not_drawn_at_random_or_is_no_single_key_is_refused(tmp_path, monkeypatch, text, reason):
    path = write_key_file(tmp_path / "sparse.key", text)
    monkeypatch.setenv(KEY_ENVIRONMENT_VARIABLE, text)
    for read in (lambda: Key.from_file(path), Key.from_environment):
        with pytest.raises(SparseError, match=reason) as caught:
            read()
        shown = "".join(traceback.format_exception(caught.value))
        assert not any(word in shown for word in text.split() if len(word) > len("sparse-key-v1"))


def test_a_key_drawn_at_random_is_never_refused():
    for _ in range(2_000):
        Key.ephemeral()


def test_an_unset_environment_variable_is_named(monkeypatch):
    monkeypatch.delenv("OTHER_KEY", raising=False)
    with pytest.raises(SparseError, match="OTHER_KEY"):
        Key.from_environment("OTHER_KEY")


def test_a_short_key_is_refused_with_both_lengths():
    with pytest.raises(SparseError, match="31 bytes; at least 32"):
        Key(SECRET[:31])


@pytest.mark.parametrize("secret", [b"\0" * 32, b"k" * 64, b"password" * 8, b"0123" * 8])
def test_a_key_of_few_distinct_bytes_is_refused(secret):
    with pytest.raises(SparseError, match="cannot be random"):
        Key(secret)


def test_text_is_not_a_key():
    with pytest.raises(SparseError, match="bytes"):
        Key(SECRET.hex())


@given(st.binary(min_size=32, max_size=48).filter(lambda b: len(set(b)) >= 10))
def test_no_representation_of_a_key_shows_its_bytes(secret):
    key = Key(secret)
    for shown in (repr(key), str(key), f"{key}", f"{key!r:>40}", repr([key]), repr({"key": key})):
        assert key.identifier in shown
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
        assert not any(
            secret.hex()[i : i + 12] in shown.replace(key.identifier, "") for i in range(len(secret.hex()) - 11)
        )
    assert not hasattr(key, "__dict__")


def test_the_identifier_is_sixteen_hex_digits_and_tells_keys_apart():
    identifiers = {Key.ephemeral().identifier for _ in range(50)}
    assert len(identifiers) == 50
    assert all(len(name) == 16 and set(name) <= set(string.hexdigits) for name in identifiers)


def test_refusals_never_carry_the_content_of_a_bad_key(tmp_path):
    text = "z9y8x7w6-secret-that-is-neither-hex-nor-base64!!"
    path = write_key_file(tmp_path / "sparse.key", text)
    with pytest.raises(SparseError) as caught:
        Key.from_file(path)
    shown = "".join(traceback.format_exception(caught.value))
    assert "z9y8x7w6" not in shown
    assert caught.value.__cause__ is None


def test_a_key_survives_the_trip_to_a_worker():
    key = Key(SECRET)
    assert pickle.loads(pickle.dumps(key)) == key
    assert copy.deepcopy(key).identifier == key.identifier


def test_purposes_of_one_key_are_independent():
    key = Key(SECRET)
    assert key.hasher(b"a").digest(32) != key.hasher(b"b").digest(32)
    assert key.hasher(b"a").digest(32) == key.hasher(b"a").digest(32)
