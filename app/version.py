"""Version of this package, as reported to peers, in journals and by `/v1/cluster`."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("commitlog")
