"""Other engines on the same model file, each in a process of its own."""
