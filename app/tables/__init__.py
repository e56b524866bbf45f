"""What the service and the command line know of a log's Delta tables, without Spark (API.md §5, §6)."""
