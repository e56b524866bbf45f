"""The driver of one replica: it carries out what a core decides."""
