"""The compiled draft layer: its passes and the growing of a tree, run by the target's own threads as one job."""
