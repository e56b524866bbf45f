"""All planted bugs: the files of raft/ and groups/ register theirs when they are imported."""

from tests.mutants.groups import controllers, managers, master_elections, masters, slaves  # noqa: F401
from tests.mutants.planting import GROUP_MUTANTS, MUTANTS
from tests.mutants.raft import elections, log_state, members, reads, replication  # noqa: F401

__all__ = ["GROUP_MUTANTS", "MUTANTS"]
