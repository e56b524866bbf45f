"""Delta tables of a log, read by the service and the command line without Spark (docs/api.md §5, §6)."""
