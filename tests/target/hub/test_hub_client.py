"""The Hugging Face client against a server on this machine: lookups with hashes, downloads, and giving up fast."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from exactspec.target.hub import ModelStore
from exactspec.target.hub_remote import HubUnreachable, HuggingFace, watch
from exactspec.target.named import ModelError

REVISION = "a" * 40
FILES = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"weights" * 1000}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download needs: model information and ``resolve`` with its headers."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def answer(self, status: int, body: bytes, headers: dict[str, str], *, head: bool) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if not head:
            self.wfile.write(body)

    def serve(self, *, head: bool) -> None:
        path = self.path.split("?")[0].strip("/").split("/")
        if path[:3] == ["api", "models", "org"] and path[3:4] == ["name"]:
            siblings = []
            for name, data in FILES.items():
                entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": "b" * 40}
                if name.endswith(".safetensors"):
                    digest = hashlib.sha256(data).hexdigest()
                    entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
                siblings.append(entry)
            info = {"id": "org/name", "modelId": "org/name", "sha": REVISION, "siblings": siblings, "tags": []}
            info["cardData"] = {"license": "other", "license_name": "house-terms"}
            self.answer(200, json.dumps(info).encode(), {"Content-Type": "application/json"}, head=head)
        elif path[:4] == ["org", "name", "resolve", REVISION] and path[4] in FILES:
            data = FILES[path[4]]
            etag = hashlib.sha256(data).hexdigest()
            self.answer(200, data, {"ETag": f'"{etag}"', "X-Repo-Commit": REVISION}, head=head)
        elif path[-1] == "gated":
            self.answer(403, b"", {"X-Error-Code": "GatedRepo"}, head=head)
        elif path[-1] == "broken":
            self.answer(503, b"", {}, head=head)
        else:
            self.answer(404, b"", {"X-Error-Code": "RepoNotFound"}, head=head)

    def do_GET(self) -> None:
        self.serve(head=False)

    def do_HEAD(self) -> None:
        self.serve(head=True)


@pytest.fixture
def server() -> Iterator[str]:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        pytest.skip("HF_HUB_OFFLINE is set")
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    httpd.daemon_threads = True
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


def test_lookup_has_sizes_hashes_and_licence(server):
    repo = HuggingFace(endpoint=server).lookup("org/name")
    assert (repo.revision, repo.licence) == (REVISION, "house-terms")
    assert {file.name: file.bytes for file in repo.files} == {name: len(data) for name, data in FILES.items()}
    hashes = {file.name: file.sha256 for file in repo.files}
    assert hashes["model.safetensors"] == hashlib.sha256(FILES["model.safetensors"]).hexdigest()
    assert hashes["config.json"] is None


def test_a_hub_id_is_downloaded_and_kept(server, tmp_path, no_index, capfd):
    store = ModelStore(tmp_path / "a home", hub=HuggingFace(endpoint=server), index=no_index)
    found = store.pull("org/name")
    assert {path.name: path.read_bytes() for path in found.path.iterdir() if path.name in FILES} == FILES
    assert {path.name for path in found.path.iterdir()} == {*FILES, "model.json"}
    assert found.licence == "house-terms"
    assert capfd.readouterr().err == ""  # no bar of the library's own


def test_what_the_hub_refuses_is_said_in_one_line(server):
    hub = HuggingFace(endpoint=server)
    with pytest.raises(ModelError, match="is not on Hugging Face, or it is private"):
        hub.lookup("org/missing")
    with pytest.raises(ModelError, match="hf auth login"):
        hub.lookup("org/gated")
    with pytest.raises(HubUnreachable, match="503"):
        hub.lookup("org/broken")


def test_a_refused_connection_gives_up_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(HubUnreachable) as error:
            HuggingFace(endpoint=f"http://127.0.0.1:{port}").lookup("org/name")
    assert time.monotonic() - start < 20  # at once, not after the library's minutes of trying again
    assert "\n" not in str(error.value)


def test_a_server_that_never_answers_is_given_up():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        with pytest.raises(HubUnreachable):
            HuggingFace(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.3).lookup("org/name")
    assert time.monotonic() - start < 20


def test_offline_mode_asks_nobody():
    code = (
        "import socket\n"
        "from exactspec.target.hub_remote import HuggingFace\n"
        "try:\n"
        "    HuggingFace(endpoint='http://192.0.2.1').lookup('org/name')\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        timeout=60,
        check=True,
    )
    assert done.stdout == "HF_HUB_OFFLINE is set\n"


def test_watch_ends_a_call_that_hangs_and_passes_errors_on(tmp_path: Path):
    release = threading.Event()
    with pytest.raises(TimeoutError, match="no answer within"):
        watch(release.wait, deadline_s=0.05)
    release.set()
    ticks: list[int] = []
    assert watch(lambda: time.sleep(0.1) or "done", tick=lambda: ticks.append(1), every_s=0.01) == "done"
    assert ticks
    with pytest.raises(KeyError):
        watch(lambda: {}["missing"])
