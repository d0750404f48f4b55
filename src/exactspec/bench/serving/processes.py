"""Servers as processes of their own: ours and llama.cpp's, started, waited for, asked what they hold, ended."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from exactspec.bench.first_token import memory
from exactspec.bench.peers.error import PeerError

READY_S = 600.0  # a first load may compile and pack
_POLL_S = 0.05
_END_S = 20.0
_LISTENS = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")
EXACTSPEC = (sys.executable, "-m", "exactspec.cli.main")


class ServerProcess:
    """A server on 127.0.0.1, ready to answer. A context manager; closing ends the process.

    `port`: where it listens, or None to be read from its log, as "listening on http://127.0.0.1:PORT". `about`: what
    result lines tell of it. Raises PeerError, with the last line that it wrote, if it does not become ready.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        port: int | None = None,
        about: Mapping[str, object] | None = None,
        ready_s: float = READY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.about = dict(about or {})
        self._log = tempfile.NamedTemporaryFile(prefix="exactspec-server-", suffix=".log")  # noqa: SIM115 - until close
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
            )
        except OSError as error:
            self._log.close()
            raise PeerError(f"{command[0]} cannot be run: {error.strerror or error}") from None
        try:
            self.port = self._wait(port, clock() + ready_s, clock)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def memory(self) -> Mapping[str, int]:
        """Bytes that it holds now: resident, anonymous, mapped; zeros where the system does not tell."""
        return memory(Path(f"/proc/{self.pid}/status"))

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a path. Raises PeerError if there is no answer."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            connection.request("GET", path)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
            connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise PeerError(f"the server does not answer: {error}") from None
        return response.status, text

    def close(self) -> None:
        """End it, by force if it does not; safe to call twice."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def said(self) -> list[str]:
        """Its log so far, both streams."""
        return Path(self._log.name).read_text("utf-8", errors="replace").splitlines()

    def _wait(self, port: int | None, deadline: float, clock: Callable[[], float]) -> int:
        while clock() < deadline:
            if not self.running:
                said = [line for line in self.said() if line.strip()] or [f"exit code {self._process.returncode}"]
                raise PeerError(f"the server ended by itself: {said[-1]}")
            if port is None and (found := _LISTENS.search("\n".join(self.said()))):
                port = int(found[1])
            if port is not None:
                self.port = port
                try:
                    if self.get("/health")[0] == 200:
                        return port
                except PeerError:
                    pass  # it does not listen yet
            time.sleep(_POLL_S)
        raise PeerError("the server did not become ready in time")


def our_server(
    model: str, *, threads: int, options: Sequence[str] = (), program: Sequence[str] | None = None
) -> ServerProcess:
    """`exactspec serve` on a free port. `options`: further ones of its command line. `program`: what is run instead."""
    command = [*(program or EXACTSPEC), "serve", "-m", model, "--port", "0", "--threads", str(threads), *options]
    return ServerProcess(command, about={"options": list(options)})


def llama_server(program: str, model: Path, *, threads: int, slots: int, context: int) -> ServerProcess:
    """llama.cpp's server with `slots` slots of `context` tokens each; all else as it comes.

    `program`: the executable, which must be built for this machine.
    """
    try:
        asked = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        raise PeerError(f"{program} cannot be run: {error.strerror or error}") from None
    said = (asked.stderr + asked.stdout).strip().splitlines()
    version = next((line for line in said if "version" in line), "unknown")
    port = _free_port()
    options = ["--parallel", str(slots), "--ctx-size", str(slots * context), "--threads", str(threads)]
    command = [program, "--model", str(model), "--host", "127.0.0.1", "--port", str(port), *options]
    about = {"version": version, "options": options, "program": os.path.basename(program)}
    return ServerProcess(command, port=port, about=about)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
