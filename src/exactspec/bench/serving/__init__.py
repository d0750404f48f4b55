"""Measuring servers: real processes, real connections, several clients at once, ours and llama.cpp's in turn."""
