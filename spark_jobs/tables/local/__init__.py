"""Tables in a local folder: data files and commits that the driver makes itself, without Spark."""
