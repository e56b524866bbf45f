"""The bytes of a log: batches, records, segment files, epoch file. Pure."""
