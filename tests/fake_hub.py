"""A model hub on this machine: enough of its protocol for huggingface_hub's own `snapshot_download`.

What a test can do to it: change `files`, take away a repository, make the server refuse, drop connections in
the middle of a file, or go away.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from urllib.parse import unquote, urlsplit

from dflash_mlx.hub import Hub, Transfer

PIECE = 2_000_000


@dataclass
class Repository:
    """Its files at one commit; `error` is what the hub answers to requests for files."""

    files: dict[str, bytes]
    branches: tuple[str, ...] = ("main",)
    error: tuple[int, str] | None = None

    @property
    def commit(self) -> str:
        parts = b"".join(name.encode() + content for name, content in sorted(self.files.items()))
        return hashlib.sha1(parts).hexdigest()


@dataclass
class FakeHub:
    """What is published, what was asked for, and what goes wrong."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    status: int | None = None  # answered to everything
    cut_after: int | None = None  # bytes of an answer after which the connection is dropped
    pause: float = 0.0  # seconds between two pieces of a file
    sent: int = 0  # bytes of files

    def publish(self, name: str, folder: Path, **more: bytes) -> Repository:
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
        self.repositories[name] = Repository({**files, **more})
        return self.repositories[name]

    def hub(self, cache: Path, transfers: list[Transfer] | None = None) -> Hub:
        """The product's `Hub` over the real `snapshot_download`."""
        from huggingface_hub import snapshot_download

        seen: list[Transfer] = [] if transfers is None else transfers
        return Hub(
            seen.append, partial(snapshot_download, cache_dir=cache, endpoint=self.url, etag_timeout=5)
        )


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: FakeHub

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        state = self.state
        path = unquote(urlsplit(self.path).path).strip("/")
        state.requests.append(f"{self.command} {path}")
        if state.status is not None:
            return self.answer(state.status)
        words = path.split("/")
        if words[:2] == ["api", "models"]:
            return self.api("/".join(words[2:4]), words[4:])
        if words[2:3] != ["resolve"]:
            return self.answer(404)  # huggingface_hub asks for more than models now and then
        return self.file("/".join(words[:2]), words[3], "/".join(words[4:]))

    def api(self, name: str, rest: list[str]) -> None:
        repository = self.state.repositories.get(name)
        if repository is None:
            return self.answer(401, "RepoNotFound")
        revision = "/".join(rest[1:]) or "main"
        if revision not in (*repository.branches, repository.commit):
            return self.answer(404, "RevisionNotFound")
        if rest[:1] == ["tree"]:
            entries = [
                {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for path, content in repository.files.items()
            ]
            return self.answer(200, body=json.dumps(entries).encode())
        body = {"id": name, "modelId": name, "sha": repository.commit, "private": False, "tags": []}
        return self.answer(
            200, body=json.dumps({**body, "siblings": [], "downloads": 0, "likes": 0}).encode()
        )

    def file(self, name: str, commit: str, path: str) -> None:
        repository = self.state.repositories.get(name)
        if repository is None or commit != repository.commit:
            return self.answer(404, "RepoNotFound")
        if repository.error is not None:
            return self.answer(*repository.error)
        content = repository.files[path]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return self.answer(206 if start else 200, body=content[start:], headers=headers)

    def answer(
        self, status: int, code: str = "", body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for header, value in {**(headers or {}), **({"X-Error-Code": code} if code else {})}.items():
            self.send_header(header, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.state.cut_after
        is_file = headers is not None
        if is_file and cut is not None and len(body) > cut:
            body, self.close_connection = body[:cut], True
        for start in range(0, len(body), PIECE):
            self.wfile.write(body[start : start + PIECE])
            time.sleep(self.state.pause)
        self.state.sent += len(body) if is_file else 0


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Without the look at the name of 127.0.0.1, which can take a Mac seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]


@contextmanager
def serve() -> Iterator[FakeHub]:
    """The server runs within; `url` says where."""
    state = FakeHub()
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"state": state}))
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
