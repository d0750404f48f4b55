"""The command as a process: exit codes, signals, pipes, terminals, start-up time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FAKE = str(Path(__file__).with_name("fake_engine.py"))
posix = pytest.mark.skipif(os.name != "posix", reason="signals and terminals of POSIX")


def test_version_and_help_do_not_load_the_heavy_modules():
    probe = (
        "import sys\n"
        "from exactspec.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "heavy = {'numpy', 'numba', 'tokenizers', 'huggingface_hub', 'gguf', 'jinja2'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else code)\n"
    )
    for argv in (["--version"], ["--help"], [], ["generate", "--help"], ["chat", "-h"]):
        done = subprocess.run([sys.executable, "-c", probe, *argv], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, ""), argv
        assert "exactspec" in done.stdout


@posix
def test_help_is_fast():
    import resource

    def cpu_seconds() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    # Processor time, the best of several: other work on the machine must not decide.
    times = []
    for _ in range(5):
        before = cpu_seconds()
        subprocess.run(
            [sys.executable, "-m", "exactspec.cli.main", "--help"], check=True, capture_output=True, timeout=60
        )
        times.append(cpu_seconds() - before)
    assert min(times) < 0.3


def test_a_pipe_in_and_out(program):
    done = program("generate", "-m", "echo", stdin="grüße\n".encode())
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "<grüße>\n", b"loading echo\n")


@pytest.mark.parametrize(
    ("argv", "stdin", "code"),
    [
        (("generate", "-m", "missing", "-p", "x"), b"", 2),
        (("generate", "-m", "echo"), b"", 2),
        (("generate", "-m", "echo"), b"\xff", 2),
        (("nonsense",), b"", 2),
        (("generate", "--nonsense"), b"", 2),
    ],
)
def test_errors_are_one_line(program, argv, stdin, code):
    done = program(*argv, stdin=stdin)
    assert done.returncode == code
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


@posix
def test_argument_that_is_not_utf8(program):
    done = subprocess.run(
        [sys.executable.encode(), FAKE.encode(), b"generate", b"-m", b"echo", b"-p", b"a\xff"],
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert b"-p is not valid UTF-8" in done.stderr


def test_an_ascii_terminal_gets_replacements_and_whole_json(program):
    env = {"PYTHONIOENCODING": "ascii"}
    shown = program("generate", "-m", "emoji", "-p", "x", env=env)
    assert shown.returncode == 0
    assert shown.stdout.startswith(b"? na?ve")
    value = json.loads(program("generate", "-m", "emoji", "-p", "x", "--json", env=env).stdout)
    assert value["text"] == "🧭 naïve — ジャケット 한국어 👩‍🔧"


def interrupt(*argv: str, after: bytes) -> tuple[int, bytes, bytes]:
    """Run with the slow engine and press Ctrl-C once `after` was seen on stdout or stderr."""
    process = subprocess.Popen(
        [sys.executable, FAKE, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    assert process.stdout is not None
    assert process.stderr is not None
    seen_out, seen_err = b"", b""
    stream = process.stdout if after.startswith(b"<") else process.stderr
    while after not in (seen_out if stream is process.stdout else seen_err):
        byte = stream.read(1)
        assert byte, "ended early"
        if stream is process.stdout:
            seen_out += byte
        else:
            seen_err += byte
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    return process.returncode, seen_out + out, seen_err + err


LONG = "x" * 400


@posix
def test_ctrl_c_keeps_the_text_so_far():
    code, out, err = interrupt("generate", "-m", "slow", "-p", LONG, after=b"<x")
    assert code == 130
    text = out.decode()
    assert text.endswith("x\n")
    assert 2 < len(text) < 300
    assert b"Traceback" not in err


@posix
def test_ctrl_c_still_prints_the_json():
    code, out, _ = interrupt("generate", "-m", "slow", "-p", LONG, "--json", after=b"loading slow\n")
    assert code == 130
    value = json.loads(out)
    assert value["finish_reason"] == "cancelled"
    assert value["text"].startswith("<x")
    assert 0 < len(value["token_ids"]) < 300
    assert value["metrics"]["completion_tokens"] == len(value["token_ids"])


@posix
def test_ctrl_c_during_a_comparison():
    code, out, err = interrupt("generate", "-m", "slow", "-p", LONG, "--json", "--compare", after=b"loading slow\n")
    assert code == 130
    assert json.loads(out)["finish_reason"] == "cancelled"
    assert "compare" not in json.loads(out)
    assert b"stopped before the comparison was complete" in err


@posix
@pytest.mark.parametrize("json_output", [False, True])
def test_a_reader_that_goes_away_ends_it_silently(json_output):
    process = subprocess.Popen(
        [sys.executable, FAKE, "generate", "-m", "slow", "-p", "x" * 8, *(["--json"] if json_output else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if not json_output:
        assert process.stdout.read(1) == b"<"
    process.stdout.close()
    assert process.wait(timeout=30) == 141
    assert process.stderr.read() == b"loading slow\n"
    process.stderr.close()


class Terminal:
    """A process on a pseudo-terminal."""

    def __init__(self, *argv: str) -> None:
        import pty

        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", EXACTSPEC_DEBUG="")
            for name in ("NO_COLOR", "FORCE_COLOR"):
                os.environ.pop(name, None)
            os.execv(sys.executable, [sys.executable, FAKE, *argv])
        self.seen = ""
        self.unread = ""

    def wait_for(self, text: str, *, timeout: float = 30) -> None:
        import select

        end = time.monotonic() + timeout
        while text not in self.unread:
            ready, _, _ = select.select([self.fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"no {text!r} in {self.unread!r}"
            piece = os.read(self.fd, 4096).decode(errors="replace")
            self.seen += piece
            self.unread += piece
        self.unread = self.unread.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def interrupt_until(self, text: str) -> None:
        """Ctrl-C at a prompt, again where nothing comes of it: one that arrives after the prompt was written and before
        Python's readline waits for keys is noticed with the next key."""
        import select

        for _ in range(30):
            self.type("\x03")
            if text in self.unread or select.select([self.fd], [], [], 1.0)[0]:
                break
        self.wait_for(text)

    def close(self) -> int:
        """The exit code, once the process has ended."""
        import select

        with contextlib.suppress(OSError):  # Linux: EIO at the end
            while True:
                if not select.select([self.fd], [], [], 30)[0]:
                    os.kill(self.pid, 9)  # it does not end: the exit code tells
                    break
                if not (piece := os.read(self.fd, 4096)):
                    break
                self.seen += piece.decode(errors="replace")
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@posix
def test_colours_and_summary_on_a_real_terminal():
    terminal = Terminal("generate", "-m", "echo", "-p", "abc")
    terminal.wait_for("copied")
    assert terminal.close() == 0
    assert "\x1b[32m" in terminal.seen
    assert "tau" in terminal.seen


@posix
def test_chat_on_a_real_terminal():
    terminal = Terminal("chat", "-m", "slow", "--no-color")
    terminal.wait_for("> ")
    terminal.type("x" * 300 + "\n")
    terminal.wait_for("<xx")
    terminal.type("\x03")  # Ctrl-C stops the answer and keeps the chat
    terminal.wait_for("cancelled")
    terminal.wait_for("> ")
    terminal.type("ok\n")
    terminal.wait_for("<ok>")
    terminal.type("/stats\n")
    terminal.wait_for("2 answers")
    terminal.wait_for("> ")  # before that, Ctrl-C would meet the chat outside its prompt
    terminal.interrupt_until("/exit leaves")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.close() == 0
    assert "Traceback" not in terminal.seen


@posix
@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stdout_or_stderr_is_no_fault(closed):
    for argv, code in ((["-m", "echo", "-p", "hi"], 0), (["-m", "echo", "-p", ""], 2)):
        done = subprocess.run(
            ["sh", "-c", f'exec "$@" {closed}>&-', "sh", sys.executable, FAKE, "generate", *argv],
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == code
        assert b"Traceback" not in done.stderr
        # Notes never stand where the answer belongs.
        assert done.stdout == (b"<hi>\n" if (closed, code) == (2, 0) else b"")


@posix
def test_ctrl_c_during_the_imports_is_no_traceback():
    stop = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from exactspec.cli.entry import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", stop, "--help"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"exactspec: interrupted\n")
