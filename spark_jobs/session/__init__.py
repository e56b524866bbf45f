"""The Spark session of a job: settings, Java, jars, packages."""
