"""The state that a log derives from its records: kept on disk, sent to replicas that lack it."""
