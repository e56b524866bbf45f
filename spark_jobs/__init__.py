"""Spark side of the service: the `commitlog` data source and the jobs that fill the Delta tables."""
