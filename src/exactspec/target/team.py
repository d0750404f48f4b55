"""The threads that run forwards together.

Helpers live inside compiled code while work comes quickly, spinning a short while between forwards (waking a
thread through the operating system costs more than a small model's layer); left idle they go to sleep on a
semaphore. No thread pool of numba's or OpenMP's is used, so nothing else in the process can disturb or abort it.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from exactspec.target.kernels.sync import CELLS, LINE, MAX_THREADS

# Idle turns before a helper sleeps: 1-2 ms where a pause takes 140 cycles, less elsewhere.
IDLE_SPINS = 30_000


class Team:
    """`threads` threads (the caller is one of them) that run `kernel` over one frame record at a time.

    `frames`: numpy record array [1]; its field `team` is set here. Not thread-safe: the target holds a lock.
    After a fork the child starts its own helpers at its first forward.
    """

    def __init__(self, kernel: Any, frames: np.ndarray[Any, Any], threads: int) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads must be in [1, {MAX_THREADS}], got {threads}")
        self.threads = threads
        self._kernel = kernel
        self._frames = frames
        self._closed = False
        self._spins = IDLE_SPINS
        self._start()

    def _start(self) -> None:
        # One cache line a cell, aligned, so that threads do not share lines by accident.
        self._memory = np.zeros(CELLS * LINE // 8 + LINE // 8, dtype=np.int64)
        skip = -self._memory.ctypes.data % LINE // 8
        self._cells = self._memory[skip:]
        self._frames["team"] = self._cells.ctypes.data
        self._wake = [threading.Semaphore(0) for _ in range(self.threads)]
        self._pid = os.getpid()
        for thread in range(1, self.threads):
            threading.Thread(target=self._serve, args=(thread,), name=f"exactspec-{thread}", daemon=True).start()

    def _serve(self, thread: int) -> None:
        # Everything by argument: after a fork or a restart this thread still owns its own generation's memory.
        kernel, frames, wake, threads = self._kernel, self._frames, self._wake[thread], self.threads
        seen = 0
        while not self._closed:
            seen = kernel(frames, threads, thread, seen, self._spins)
            wake.acquire()

    def ready(self) -> int:
        """Make sure that the helpers live; the address of the cells at which the threads meet in the next run."""
        if self._closed:
            raise RuntimeError("this target is closed")
        if self.threads > 1 and self._pid != os.getpid():
            self._start()  # a fork copied the memory but not the helpers
        return self._cells.ctypes.data

    def run(self) -> None:
        """One forward over the frame, by all threads. Returns when it is complete.

        Ctrl-C may be raised before or after the job, which starts and ends within one call of compiled code.
        """
        self.ready()
        if self.threads > 1:
            try:
                sleeping = self._kernel(self._frames, self.threads, -1, 0, 0)
                for thread in range(1, self.threads):
                    if sleeping >> thread & 1:
                        self._wake[thread].release()
            except BaseException:
                self._kernel(self._frames, self.threads, -2, 0, 0)  # let them sleep again
                raise
        self._kernel(self._frames, self.threads, 0, 0, 0)

    def close(self) -> None:
        """Let the helpers end. Call it when no forward runs."""
        if not self._closed:
            self._closed = True
            for wake in self._wake:
                wake.release()
