"""The trained draft layer (LongSpec): its card, its file, and what one pass computes. See docs/longspec.md."""
