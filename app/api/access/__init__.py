"""Access to the REST service: tokens, what each of them permits, and the record of administration."""
