"""`commitlog up`: run a local cluster and its Spark job in the foreground."""

import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import click

from app.cli.context import CommandFailed, person_watches, print_json
from app.cli.groups import not_installed
from app.client import contexts
from app.local.cluster import HA_PORT_DISTANCE, PEER_PORT_DISTANCE, ClusterError, FolderInUse, LocalCluster
from app.local.processes import StopRequested, ending_on_signals
from app.local.spark_job import ALL_LOGS, SparkJob, job_arguments
from app.setup.checks import port_is_free

WATCH_INTERVAL_S = 0.2


@click.command("up")
@click.option("--nodes", type=click.IntRange(1, 9), default=3, show_default=True, help="Number of nodes.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("commitlog-data"),
    show_default=True,
    help="Folder of the cluster. An existing cluster is started again.",
)
@click.option(
    "--port", type=click.IntRange(1, 64_000), default=8101, show_default=True, help="Port of node n1."
)
@click.option(
    "--replication",
    type=click.Choice(["raft", "controller", "classic"]),
    default="raft",
    show_default=True,
    help="Replication mode of the log `default`. In classic mode n1 is its master.",
)
@click.option("--spark/--no-spark", default=True, help="Write all logs to Delta tables (DIR/tables).")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Report errors as JSON too; the ready line always is.",
)
def up_command(nodes: int, data: Path, port: int, replication: str, spark: bool, as_json: bool) -> None:
    """Run a cluster of real processes on 127.0.0.1 until SIGTERM or Ctrl-C.

    Prints one JSON line when every node is ready. A node that ends is reported on standard error; the
    other nodes continue. While it runs, commands without --endpoint use it, and `commitlog context` lists it
    by the name of its folder.

    \b
    Examples:
      commitlog up --no-spark
      commitlog up --nodes 5 --data /tmp/demo --port 18101
    """
    _check_installed("uvicorn")
    if spark:
        _check_installed("pyspark", ", or set --no-spark")
    if LocalCluster.runs_in(data):  # its ports are in use too, but they are not the reason
        raise CommandFailed(str(FolderInUse(data.resolve())))
    check_ports(port, nodes, classic=replication == "classic")
    with ExitStack() as stack:
        try:
            stack.enter_context(ending_on_signals())
            cluster = stack.enter_context(LocalCluster(data, nodes=nodes, port=port, replication=replication))
            cluster.start()
            cluster.wait_ready()
            job = stack.enter_context(SparkJob(cluster)) if spark else None
            stack.enter_context(_context_of(cluster))
            print_json(ready_line(cluster, job))
            if person_watches():
                url = cluster.urls[0]
                click.echo(f"live page: {url}/ui, API: {url}/docs; stop with Ctrl-C", err=True)
            _watch(cluster, job)
        except ClusterError as error:
            raise CommandFailed(str(error)) from error
        except StopRequested:
            pass  # that is how this command ends; the stack ends the children


def _check_installed(module: str, advice: str = "") -> None:
    """Raise CommandFailed if a library of the processes is missing: their own reports are in their logs."""
    if find_spec(module) is None and (failure := not_installed(ModuleNotFoundError(name=module))) is not None:
        raise CommandFailed(f"{failure.message}{advice}")


@contextmanager
def _context_of(cluster: LocalCluster) -> Iterator[None]:
    """Keep a context while the cluster runs. One that the user selected stays in use: print that."""
    name = None
    try:
        name = contexts.add_running(cluster.folder.name, list(cluster.urls))
        selected = contexts.load().current
        if selected is not None:
            advice = f"commands use it; `commitlog context use {name}` selects this cluster"
            click.echo(f"commitlog: the context {selected} is in use: {advice}", err=True)
    except contexts.ContextError as error:
        click.echo(f"commitlog: no context for this cluster: {error}", err=True)
    try:
        yield
    finally:
        if name is not None:
            _remove_context(name)


def _remove_context(name: str) -> None:
    try:
        contexts.remove_running(name)
    except contexts.ContextError as error:
        click.echo(f"commitlog: the context {name} stays: {error}", err=True)


def check_ports(port: int, nodes: int, *, classic: bool = False) -> None:
    """Raise CommandFailed when an address of the cluster is taken."""
    wanted = [base + number for base in (port, port + PEER_PORT_DISTANCE) for number in range(nodes)]
    if classic:
        wanted.append(port + HA_PORT_DISTANCE)
    taken = [str(number) for number in wanted if not port_is_free(number)]
    if taken:
        ports = f"port {taken[0]} is" if len(taken) == 1 else f"ports {', '.join(taken)} are"
        raise CommandFailed(
            f"{ports} in use on 127.0.0.1: stop what uses {'it' if len(taken) == 1 else 'them'}, "
            "or choose another --port"
        )


def ready_line(cluster: LocalCluster, job: SparkJob | None) -> dict[str, object]:
    """Return the ready line: addresses, process ids and folders of the cluster."""
    return {
        "ready": True,
        "endpoints": cluster.urls,
        "config": str(cluster.config),
        "nodes": [
            {"id": node.id, "url": node.url, "pid": cluster.pid(node.id), "folder": str(node.folder)}
            for node in cluster.nodes
        ],
        "tables": None if job is None else str(job.tables),
        "spark": None if job is None else {"pid": job.pid, "log": str(job.log)},
    }


def _watch(cluster: LocalCluster, job: SparkJob | None) -> None:
    """Report each child process that ends. Never returns."""
    while True:
        time.sleep(WATCH_INTERVAL_S)
        for node_id, words in cluster.fallen():
            again = f"commitlog serve --config {cluster.config} --node {node_id}"
            click.echo(f"commitlog: {node_id} {words}\ncommitlog: `{again}` starts it again", err=True)
        if job is not None and (ending := job.fallen()) is not None:
            click.echo(
                f"commitlog: the Spark job {ending}\ncommitlog: `{_job_command(cluster)}` starts it again",
                err=True,
            )


def _job_command(cluster: LocalCluster) -> str:
    """Return the command line of the Spark job of a cluster."""
    options = job_arguments(cluster.urls, ALL_LOGS, cluster.tables, cluster.folder / "checkpoints")
    return shlex.join(["commitlog", "materialize", *options])
