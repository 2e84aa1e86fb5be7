"""What goes wrong with storage, in sentences that name the field and what to do."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import botocore.exceptions as boto
from fsspec.exceptions import FSTimeoutError

from jobs.config import without_credentials
from jobs.storage.options import configured, server
from sparse_core.errors import SparseError

_FORBIDDEN = {"403", "AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden", "MethodNotAllowed", "405"}
_REFUSED = {"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken", "TokenRefreshRequired"}
_ELSEWHERE = {"301", "307", "PermanentRedirect", "TemporaryRedirect", "Redirect", "AuthorizationHeaderMalformed"}
_ELSEWHERE |= {"IllegalLocationConstraintException"}
_TRANSIENT = {"500", "502", "503", "504", "InternalError", "ServiceUnavailable", "SlowDown", "Throttling"}
_TRANSIENT |= {"RequestTimeout", "RequestLimitExceeded", "BadGateway", "GatewayTimeout", "TooManyRequests", "429"}
_UNKNOWN = {"404", "NoSuchKey", "NoSuchUpload", "NoSuchVersion", "NotFound"}
_NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.SSOError,
    boto.TokenRetrievalError,
)
_NO_CONNECTION = (boto.EndpointConnectionError, boto.ConnectTimeoutError, boto.ProxyConnectionError)
# deltalake and lance tell a server's answer in words.
_IN_WORDS = (r"<Code>(\w+)</Code>", r"\b(\d{3}) (?:Forbidden|Not Found|Moved Permanently)", r"status: (\d{3})")
_CONNECTION_IN_WORDS = re.compile(r"error sending request|[Cc]onnect(?:ion)? (?:error|refused)|dns error", re.DOTALL)


@contextmanager
def explained(url: str, *, field: str | None = None, write: bool = False) -> Iterator[None]:
    """Turn what storage raises inside the block into a `SparseError` that tells what to do.

    Parameters
    ----------
    url : str
        What is read or written.
    field : str, optional
        Name of the setting that holds it, such as 'input.path'.
    write : bool
        Whether it is written.

    Notes
    -----
    Exceptions that do not come from storage pass as they are; so do pyarrow's about the content of a file.
    """
    try:
        yield
    except (OSError, boto.BotoCoreError, boto.ClientError, *_rust_errors()) as error:
        told = sentence(error, url, field=field, write=write)
        if told is None:
            raise
        raise SparseError(told) from None


def _rust_errors() -> tuple[type[Exception], ...]:
    # Nothing can have raised them unless the library has been imported.
    deltalake = sys.modules.get("deltalake.exceptions")
    return (deltalake.DeltaError,) if deltalake else ()


def sentence(error: BaseException, url: str, *, field: str | None, write: bool) -> str | None:
    """The sentence for an exception; None if it is not storage's."""
    told = _told(error, without_credentials(str(url)), write)
    if told is None or field:
        return told and f"{field}: {told}"
    # A URL stays as it is.
    return told[0].upper() + told[1:] if told.split()[0].isalpha() else told


def code_of(error: BaseException) -> str | None:
    """S3's error code behind an exception, as botocore, s3fs, deltalake or lance raise it; None if there is none."""
    answer = _answer(error)
    if answer is not None:
        return str(answer.get("Error", {}).get("Code"))
    if isinstance(error, OSError) and error.errno is not None:
        return None
    if not _speaks_of_storage(error):
        return None
    found = (re.search(pattern, str(error)) for pattern in _IN_WORDS)
    return next((match[1] for match in found if match), None)


def is_transient(error: BaseException) -> bool:
    """Whether another attempt may succeed."""
    if isinstance(error, _NO_CONNECTION):
        return False
    broken = (boto.HTTPClientError, boto.ReadTimeoutError, FSTimeoutError, TimeoutError)
    return code_of(error) in _TRANSIENT or _is(error, broken)


def _answer(error: BaseException | None) -> dict | None:
    """What the server answered; s3fs raises Python's own exceptions with botocore's behind them."""
    for _ in range(4):
        if isinstance(error, boto.ClientError):
            return error.response
        if error is None:
            return None
        error = error.__cause__ or error.__context__
    return None


def _is(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    # aiohttp's are told apart by their module, so that it is not imported for local files.
    return isinstance(error, kinds) or type(error).__module__.startswith("aiohttp.")


def _speaks_of_storage(error: BaseException) -> bool:
    return "S3" in str(error) or "object store" in str(error).lower() or "Object at location" in str(error)


def _told(error: BaseException, url: str, write: bool) -> str | None:
    where, config = server(), configured()
    verb = "written to" if write else "read"
    code = code_of(error)
    bucket = url.partition("://")[2].partition("/")[0]
    if code == "NoSuchBucket":
        return f"there is no bucket {bucket!r} at {where}. Check its name, storage.endpoint and storage.region."
    if code in _FORBIDDEN:
        if config.anonymous:
            return f"{url} may not be {verb} without credentials ({code}). Set storage.anonymous to false."
        actions = "s3:PutObject and s3:AbortMultipartUpload" if write else "s3:ListBucket and s3:GetObject"
        return (
            f"{url} may not be {verb} with the credentials in use ({code}). Grant them {actions}, or choose others "
            "with storage.profile or AWS's environment variables."
        )
    if code == "RequestTimeTooSkewed":
        return f"{where} refuses requests because the clock of this machine is wrong. Set it and try again."
    if code in _REFUSED:
        return (
            f"{where} does not accept the credentials in use ({code}). Renew them, or choose others with "
            "storage.profile or AWS's environment variables."
        )
    if code in _ELSEWHERE:
        region = _region(error)
        told = f"; set storage.region={region}" if region else "; set storage.region to the bucket's"
        return f"the bucket {bucket!r} is in another region than {config.region or 'the one asked'}{told}."
    if code in _TRANSIENT:
        return (
            f"{where} kept failing with {code} in {config.attempts} attempts to reach {url}. Run the same command "
            "again later; storage.attempts allows more."
        )
    if code in {"InvalidBucketName", "InvalidURI"} or isinstance(error, boto.ParamValidationError):
        return f"{url} is not a valid name for object storage; check the name of the bucket."
    if code is not None and code not in _UNKNOWN:
        return f"{url} cannot be {verb}: {where} answers {code}."
    if isinstance(error, boto.ProfileNotFound):
        return f"{error}. Name one of ~/.aws/config or ~/.aws/credentials in storage.profile (or AWS_PROFILE)."
    if isinstance(error, _NO_CREDENTIALS):
        return (
            f"there are no credentials to reach {url or where} with ({type(error).__name__}). Set AWS_ACCESS_KEY_ID "
            "and AWS_SECRET_ACCESS_KEY, name a profile in storage.profile, run where a role gives them, or set "
            "storage.anonymous=true for public data."
        )
    if isinstance(error, _NO_CONNECTION) or (_speaks_of_storage(error) and _CONNECTION_IN_WORDS.search(str(error))):
        return f"{where} cannot be reached for {url}. Check storage.endpoint (or AWS_ENDPOINT_URL) and the network."
    if isinstance(error, boto.SSLError):
        return f"no secure connection to {where} ({error}). Check whether storage.endpoint says https rightly."
    if isinstance(error, boto.ReadTimeoutError):
        return f"{where} gives no answer for {url}. Check storage.endpoint, or allow more with storage.read_timeout."
    if _is(error, (boto.HTTPClientError, FSTimeoutError)):
        return (
            f"the connection to {where} broke in {config.attempts} attempts to reach {url} ({type(error).__name__}). "
            "Run the same command again later; storage.attempts and storage.read_timeout allow more."
        )
    if code == "NoSuchUpload":
        return f"{where} no longer knows the upload of {url}. Run the same command again."
    if (isinstance(error, FileNotFoundError) and not write) or code in _UNKNOWN:
        return f"there is no file at {url}."
    if isinstance(error, PermissionError):
        return f"{url} may not be {verb} by this user."
    if isinstance(error, OSError) and error.errno is not None:
        return f"{url} cannot be {verb} ({os.strerror(error.errno)})."
    if isinstance(error, boto.BotoCoreError):
        return f"{url} cannot be {verb} ({type(error).__name__}: {error})."
    return None


def _region(error: BaseException) -> str | None:
    answer = _answer(error) or {}
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return answer.get("Error", {}).get("Region") or headers.get("x-amz-bucket-region")
