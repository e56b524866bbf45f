"""The Delta tables of the logs, as the routes show them."""
