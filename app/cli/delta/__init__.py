"""Commands about the Delta tables of a log."""
