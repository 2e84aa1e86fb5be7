"""The secret key behind the noise: reading, writing, checking, naming.

Format. A key is one line of 64 or more hexadecimal digits, as secret stores mount it; or ``sparse-key-v1 <hex>``, as
`write_new_key` writes it; or ``base64:<base64>``. Base64 needs its prefix because most passphrases of letters are
base64 of something. A key is drawn, not thought up: bytes that are all text, repeat themselves or are few are refused,
and a passphrase that passes for random bytes remains a guessable key.

Rotation. Noise is a function of the key, so re-keying gives every record fresh noise even when nothing
else changed. Under the new key each record is therefore released once more, and whoever holds both
outputs can average them: the privacy losses add up (basic composition), epsilon for the old release plus
epsilon for the new. Rotate when a key may have leaked, not on a calendar, and withdraw the old dataset.
A leaked key is a lost guarantee for everything released under it: noise that can be recomputed can be
subtracted.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
import stat
from pathlib import Path

from sparse_core.errors import SparseError

KEY_ENVIRONMENT_VARIABLE = "SPARSE_KEY"
KEY_BYTES = 32
_FILE_HEADER = "sparse-key-v1"
_DOMAIN = b"sparse.key.v1"
_MIN_DISTINCT_BYTES = 10
_FIRST_PRINTABLE, _LAST_PRINTABLE = 0x20, 0x7E
_BASE64 = "base64:"
_HEX = re.compile(r"[0-9a-fA-F]+")
_MAX_FILE_BYTES = 65_536


class Key:
    """A secret of at least 32 bytes that never shows itself.

    ``repr``, ``str`` and ``format`` give the identifier only, and the class offers no way to read the
    bytes back: use :meth:`hasher` to derive from them.

    A key can be pickled, because workers on other machines need it. A pickled key is the key: send it
    over the cluster's own transport, and never write the pickle to disk.

    Parameters
    ----------
    secret : bytes
        At least 32 bytes from a cryptographic generator.

    Raises
    ------
    SparseError
        If the secret is too short or visibly not random: fewer than 10 distinct byte values, a block of less than 32
        bytes over and over, or nothing but printable ASCII. Of 32 random bytes, each has a probability below 1e-13.
    """

    __slots__ = ("_identifier", "_secret")

    def __init__(self, secret: bytes):
        if not isinstance(secret, bytes):
            raise SparseError(f"A key is made from bytes, not {type(secret).__name__}.")
        if len(secret) < KEY_BYTES:
            raise SparseError(
                f"The key has {len(secret)} bytes; at least {KEY_BYTES} are needed. Make one with `sparse key new`."
            )
        if len(set(secret)) < _MIN_DISTINCT_BYTES:
            raise SparseError("The key repeats a few byte values and cannot be random. Make one with `sparse key new`.")
        if any(secret[period:] == secret[:-period] for period in range(1, min(KEY_BYTES, len(secret) // 2 + 1))):
            raise SparseError("The key repeats one block and cannot be random. Make one with `sparse key new`.")
        if all(_FIRST_PRINTABLE <= byte <= _LAST_PRINTABLE for byte in secret):
            raise SparseError(
                "The key is text, such as a passphrase, and can be guessed. Make one with `sparse key new`."
            )
        self._secret = secret
        self._identifier = self.hasher(b"identifier").hexdigest(8)

    @property
    def identifier(self) -> str:
        """Sixteen hexadecimal digits that name the key in manifests and reveal nothing about it."""
        return self._identifier

    def hasher(self, purpose: bytes):
        """Return a SHAKE-256 object that has absorbed the key, for one named purpose.

        Prefixing the key to a sponge is a sound pseudorandom function (Bertoni et al., "On the security
        of the keyed sponge construction", 2011): there is no length extension to guard against.

        Parameters
        ----------
        purpose : bytes
            Separates uses of one key; different purposes give independent outputs.
        """
        state = hashlib.shake_256()
        for field in (_DOMAIN, self._secret, purpose):
            state.update(length_prefixed(field))
        return state

    @classmethod
    def ephemeral(cls) -> "Key":
        """Draw a key that exists in this process only.

        Vectors released under it can never be released again with the same noise: a retry or a re-run
        publishes fresh noise, spends more budget and allows averaging.
        """
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> "Key":
        """Read a key file.

        Parameters
        ----------
        path : path
            A regular file that, on POSIX systems, only its owner can read or write.

        Raises
        ------
        SparseError
            If the file is missing, unreadable, open to group or others, or holds no valid key.
        """
        return cls(_decoded(_read_private(Path(path)), where=f"The key file {path}"))

    @classmethod
    def from_environment(cls, variable: str = KEY_ENVIRONMENT_VARIABLE) -> "Key":
        """Read a key from an environment variable that holds it in one of the forms of a key file.

        Raises
        ------
        SparseError
            If the variable is unset or holds no valid key.
        """
        text = os.environ.get(variable, "")
        if not text.strip():
            raise SparseError(
                f"The environment variable {variable} holds no key. Set it to 64 or more hexadecimal "
                "digits, or name a key file; `sparse key new` writes one."
            )
        return cls(_decoded(text, where=f"The environment variable {variable}"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self._identifier)

    def __repr__(self) -> str:
        return f"Key(identifier={self._identifier!r})"


def write_new_key(path: str | os.PathLike) -> Key:
    """Draw a key from the operating system's generator and write it to a new file with mode 600.

    Parameters
    ----------
    path : path
        Where to write. An existing file is never overwritten.

    Returns
    -------
    Key
        The key just written.

    Raises
    ------
    SparseError
        If the path exists or cannot be written.
    """
    path = Path(path)
    secret = secrets.token_bytes(KEY_BYTES)
    key = Key(secret)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SparseError(
            f"{path} exists and is not overwritten: vectors released under its key could never be "
            "reproduced. Choose another path."
        ) from None
    except OSError as error:
        raise SparseError(f"Cannot write the key file {path}: {error.strerror}.") from None
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{_FILE_HEADER} {secret.hex()}\n")
        file.flush()
        os.fsync(file.fileno())
    return key


def length_prefixed(field: bytes) -> bytes:
    """Frame a field so that no two sequences of fields concatenate to the same bytes."""
    return len(field).to_bytes(8, "big") + field


def _read_private(path: Path) -> str:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SparseError(f"The key file {path} is not a regular file.")
            if os.name == "posix" and status.st_mode & 0o077:
                raise SparseError(
                    f"The key file {path} has mode {stat.S_IMODE(status.st_mode):o}: others than its owner "
                    f"may use it. Run `chmod 600 {path}` (in Kubernetes, mount the secret with "
                    "defaultMode 0400); if others may have read it, make a new key."
                )
            return file.read(_MAX_FILE_BYTES).decode(errors="replace")
    except FileNotFoundError:
        raise SparseError(f"There is no key file {path}. Make one with `sparse key new {path}`.") from None
    except OSError as error:
        raise SparseError(f"Cannot read the key file {path}: {error.strerror}.") from None


def _decoded(text: str, *, where: str) -> bytes:
    # Editors on Windows begin a text with a byte-order mark.
    lines = text.removeprefix("\ufeff").split()
    header = lines[:1] == [_FILE_HEADER]
    payload = lines[header] if len(lines) == 1 + header else None
    del text, lines
    if payload is None:
        raise SparseError(f"{where} does not hold one key on one line. Leave one key in it, and nothing else.")
    if _HEX.fullmatch(payload):
        # Sixty-four random digits are all decimal with probability 1e-13.
        if payload.isdecimal():
            raise SparseError(f"{where} holds decimal digits only and can be guessed; make one with `sparse key new`.")
        if len(payload) % 2:
            raise SparseError(f"{where} has an odd number of hexadecimal digits: one was lost or is too many.")
        return bytes.fromhex(payload)
    if payload.startswith(_BASE64) and not header:
        try:
            return base64.b64decode(payload.removeprefix(_BASE64), validate=True)
        except binascii.Error:
            pass
    del payload
    raise SparseError(
        f"{where} is neither 64 or more hexadecimal digits nor base64 after {_BASE64}, and a passphrase is no key. "
        f"Make one with `sparse key new`; put {_BASE64} before base64 that was drawn at random."
    )
