"""Access to the REST service: tokens, what each of them permits, protection of browsers, and the record of
administration."""
