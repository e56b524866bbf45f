"""Twenty bugs that were chosen by reading the product code alone, before any test was looked at."""

from app.node.checkpoints import load_state
from app.node.door import Door
from app.node.state_transfer import StateTransfer
from app.log_state import LogState
from app.raft.ballot import Ballot
from app.raft.dispatcher import Dispatcher
from app.raft.entry_handler import EntryHandler
from app.raft.reads import FollowerReads, LeaderReads
from storage.commitlog import Commitlog
from storage.recovery import Recovery
from tests.mutants.edited import plant
