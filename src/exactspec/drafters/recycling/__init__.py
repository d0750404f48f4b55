"""The compiled parts of `drafters/recycle.py`."""
