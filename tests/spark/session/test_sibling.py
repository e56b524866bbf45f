"""A session whose settings are its own begins with those of the session beside it."""

from pyspark.sql import SparkSession

from spark_jobs.session.spark_session import sibling_of

TIME_ZONE = "spark.sql.session.timeZone"


def test_a_sibling_has_the_settings_that_were_made_after_the_start_of_spark(spark: SparkSession) -> None:
    """As of a session that another program has started, in its own time zone."""
    adopted = spark.newSession()
    adopted.conf.set(TIME_ZONE, "Asia/Kathmandu")
    sibling = sibling_of(adopted)
    assert sibling.conf.get(TIME_ZONE) == "Asia/Kathmandu"
    sibling.conf.set(TIME_ZONE, "UTC")
    assert (adopted.conf.get(TIME_ZONE), spark.conf.get(TIME_ZONE)) == ("Asia/Kathmandu", "UTC")
