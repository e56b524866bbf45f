"""The source refuses a pyspark that lacks what it needs, before an import fails."""

import pytest

from spark_jobs.source.version import check_spark


def test_an_old_spark_is_refused_with_the_version_that_is_needed() -> None:
    for version in ("4.2.0", "4.2.0.dev1", "4.10.1", "5.0.0"):
        check_spark(version)
    for version in ("4.1.1", "4.0.0", "3.5.7"):
        with pytest.raises(ImportError, match=rf"needs pyspark 4\.2 or newer .* found {version}"):
            check_spark(version)
