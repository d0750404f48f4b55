"""Stands for pip: ``fake_pip.py WHEELS LOG DELAY_S download ... --dest FOLDER NAME==VERSION``.

Copies the wheel of that name from WHEELS, through TMPDIR as pip does. Waits while ``WHEELS/NAME.hold`` exists.
"""

import os
import shutil
import sys
import time
from pathlib import Path

wheels, log, delay, requirement = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[-1]


def note(what: str) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{what} {requirement}\n".encode())
    os.close(fd)


note("start")
name, version = requirement.split("==")
wheel = wheels / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
if not wheel.exists():
    print("Looking in indexes: somewhere", file=sys.stderr)
    print(f"ERROR: No matching distribution found for {requirement}", file=sys.stderr)
    sys.exit(1)
half = Path(os.environ["TMPDIR"]) / wheel.name
half.write_bytes(wheel.read_bytes()[:100])
time.sleep(delay)
deadline = time.monotonic() + 30  # an orphan of a killed test ends all the same
while (wheels / f"{name}.hold").exists() and time.monotonic() < deadline:
    time.sleep(0.02)
half.unlink()
folder = Path(sys.argv[sys.argv.index("--dest") + 1])
folder.mkdir()
shutil.copy(wheel, folder / wheel.name)
note("end")
