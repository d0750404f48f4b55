"""Whether a CUDA device is there, asked of the driver's library: needs neither torch nor triton.

``python -m exactspec.target.cuda.present`` prints one line and exits with 0 or 2.
"""

from __future__ import annotations

import ctypes
import sys


def device_count() -> int:
    """CUDA devices that this process may use; 0 without a driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def main() -> int:
    count = device_count()
    if count:
        print(f"{count} CUDA {'device' if count == 1 else 'devices'}")
        return 0
    print("error: no CUDA device or driver was found: run this on a machine with an NVIDIA GPU", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
