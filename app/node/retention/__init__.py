"""Retention of records and journals by age and size."""
