"""One recipe a file: how the prompts of a workload are made, offline, from what a Python installation holds."""
