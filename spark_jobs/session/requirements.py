"""Requirements of a notebook, checked before its first call: one sentence in place of a late traceback."""

from app.client import CommitlogClient, NoAnswer
from app.errors import ConfigError

ANSWER_S = 10.0  # to wait for a node that starts or is slow


def require_cluster(endpoint: str, token: str | None = None) -> None:
    """Raise ConfigError if no node answers at `endpoint`, base URLs that are separated by commas: at once if
    all of them refuse the connection."""
    urls = [url.strip() for url in endpoint.split(",")]
    with CommitlogClient(urls, token=token, give_up_s=ANSWER_S, waits_for_start=False) as client:
        try:
            client.cluster()
        except NoAnswer as error:
            raise ConfigError(
                f"no node of a cluster answers: {error}. Start one with `commitlog up` or with "
                "`make demo ARGS=--keep`, or set the widget `endpoint` to the URLs of a running one"
            ) from None
