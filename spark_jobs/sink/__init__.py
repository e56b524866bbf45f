"""`format("commitlog")` for writes: each row once."""
