"""Compiled code on the disk: named by what it is, used while every byte is the one that was written."""
