"""Training of the draft layer of drafters/longspec: data, features, loss, loop. Needs the extra `train` (torch)."""
