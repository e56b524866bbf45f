"""Commands that write and read records: `append`, `read` and `tail`, and their file formats."""
