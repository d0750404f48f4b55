"""The lock that is given in the order it was asked for."""

from __future__ import annotations

import signal
import sys
import threading
import time

import pytest

from exactspec.turns import Turns


def waiting(turns: Turns, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(turns._queue) < count:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_first_come_first_served() -> None:
    turns, order = Turns(), []

    def take(i: int) -> None:
        with turns:
            order.append(i)

    with turns:
        threads = []
        for i in range(8):
            threads.append(threading.Thread(target=take, args=(i,)))
            threads[-1].start()
            waiting(turns, i + 1)
    for thread in threads:
        thread.join(60)
    assert order == list(range(8))


def test_one_at_a_time_and_released_on_errors() -> None:
    turns = Turns()
    inside, worst = 0, 0

    def work() -> None:
        nonlocal inside, worst
        for _ in range(200):
            try:
                with turns:
                    inside += 1
                    worst = max(worst, inside)
                    inside -= 1
                    raise RuntimeError
            except RuntimeError:
                pass

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert worst == 1
    assert not turns._busy


@pytest.mark.skipif(sys.platform == "win32", reason="needs interval timers")
def test_an_interrupt_while_waiting_leaves_the_queue() -> None:
    turns = Turns()
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with turns:
            held.set()
            let_go.wait(60)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt), turns:
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not turns._queue
    let_go.set()
    thread.join(60)
    with turns:  # nobody holds it for the one that went away
        assert turns._busy
    assert not turns._busy
