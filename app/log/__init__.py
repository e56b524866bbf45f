"""What every replication mode shares, typed: the contract of cores and drivers, the log's state, its
commands."""
