"""The version of this package, as peers, journals and `/v1/cluster` say it."""

from importlib.metadata import version
from typing import Final

VERSION: Final = version("commitlog")
