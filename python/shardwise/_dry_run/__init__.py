"""Runs a program as some ranks of a job of any size, without memory and without messages: see docs/dry_run.md."""
