"""The Delta tables of a log: schemas, exactly-once writes, views, time travel."""
