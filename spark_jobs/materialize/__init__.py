"""The jobs that write a log into its Delta tables."""
