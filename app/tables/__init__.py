"""What the service and the command line know of a log's Delta tables, without Spark (docs/api.md §5, §6)."""
