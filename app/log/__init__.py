"""Shared by every replication mode: the contract of cores and drivers, the log's state, its commands."""
