"""`commitlog demo`: options, steps and summary of the demo."""

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from app.cli.context import CommandFailed, ExitCode, json_option, print_json
from app.cli.up import check_ports
from app.demo.flights import FLIGHTS_OF_2013, DataSetMissing
from app.demo.folder import FolderRefused, prepare
from app.demo.proofs import Sent
from app.demo.report import leaders_table, nodes_table, proofs_table, watermarks_table
from app.demo.show import Show
from app.demo.story import Demo, DemoFailed, Story
from app.local.processes import StopRequested, ending_on_signals
from app.local.spark_job import check_spark
from app.setup.checks import State, check_data_set, check_jars, check_java
from app.setup.environment import Environment

NODES = 3
MIN_FLIGHTS = 200


@click.command("demo")
@click.option("--keep", is_flag=True, help="Keep the cluster and the Spark job running until Ctrl-C.")
@click.option(
    "--flights",
    type=click.IntRange(MIN_FLIGHTS, FLIGHTS_OF_2013),
    default=FLIGHTS_OF_2013,
    show_default=True,
    help="Number of flights of 2013 to send.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("demo-data"),
    show_default=True,
    help="Folder of the demo. The data of an earlier demo are deleted; any other folder must be empty.",
)
@click.option(
    "--port", type=click.IntRange(1, 64_000), default=8101, show_default=True, help="Port of node n1."
)
@json_option
def demo_command(keep: bool, flights: int, data: Path, port: int, as_json: bool) -> None:
    """Run the demo: three nodes, Spark, the flights of 2013, a killed leader, and proofs.

    The exit code is 1 if a proof does not hold.

    \b
    Examples:
      commitlog demo
      commitlog demo --flights 20000 --keep
    """
    show = Show(Console(stderr=as_json, highlight=False))
    folder = data.resolve()
    if not Environment().in_checkout:
        raise CommandFailed(
            "the demo runs in a checkout of the repository, which has its notebooks: `make demo` there"
        )
    check_spark()
    try:
        for check in (check_java(), check_jars(), check_data_set()):
            if check.state is State.MISSING:
                raise CommandFailed(f"{check.name}: {check.detail}; {check.remedy}")
        check_ports(port, NODES)
        if prepare(folder):
            show.line(f"deleted the data of an earlier demo in {folder}")
        story = run(folder, port, flights, show, keep=keep)
    except (FolderRefused, DataSetMissing) as error:
        raise CommandFailed(str(error)) from error
    except DemoFailed as error:
        raise CommandFailed(
            f"{error}\nAll processes have been stopped. The log files are in {folder}"
        ) from error
    except StopRequested as request:
        code = ExitCode.INTERRUPTED if request.number == signal.SIGINT else ExitCode.FAILED
        raise CommandFailed(f"stopped by {request}; all processes have been stopped", code) from request
    if as_json:
        print_json(summary(story, folder))
    if not story.holds:
        sys.exit(1)


def run(folder: Path, port: int, flights: int, show: Show, *, keep: bool) -> Story:
    """Run the demo step by step. All processes that it started are stopped in any case."""
    with ExitStack() as stack:
        stack.enter_context(ending_on_signals())
        show.step("starting three nodes and the Spark job")
        demo = Demo(folder, port, flights, show, stack)
        demo.start()
        show.step(f"sending {flights:,} flights through REST; the leader will be killed half-way")
        sent = demo.send()
        show.step("waiting until every record is in Delta")
        demo.wait_for_tables(sent)
        show.step("reading the log of every node")
        demo.read_nodes()
        demo.wait_for_events()
        if not keep:
            demo.stop_job()
        show.step("reading the tables with Spark")
        demo.start_spark_side()
        demo.await_findings()
        show_findings(show, demo, sent)
        show.step("running the notebook on the tables")
        demo.await_notebook()
        show_outcome(show, demo.story, folder, demo.cluster.urls, keep=keep)
        if keep:
            try:
                demo.watch()
            except StopRequested:
                show.step("stopping")
        return demo.story


def show_findings(show: Show, demo: Demo, sent: Sent) -> None:
    """Show the tables of the report, the proofs last."""
    proofs = demo.prove(sent)
    story, found = demo.story, demo.story.found
    for table in (
        leaders_table(found["roles"], found["epochs"]),
        watermarks_table(found["watermarks"]),
        nodes_table(story.nodes, story.leader),
        proofs_table(proofs),
    ):
        show.table(table)


def show_outcome(show: Show, story: Story, folder: Path, urls: list[str], *, keep: bool) -> None:
    """Print the locations of the results, and the number of proofs that hold."""
    show.step("done")
    show.line(f"Delta tables: {folder / 'tables'}")
    show.line(f"notebook with its plots: {story.notebook_html}")
    show.line(f"live page: {urls[0]}/ui{'' if keep else ' (while a cluster runs: `make demo ARGS=--keep`)'}")
    failed = sum(not proof.holds for proof in story.proofs)
    if failed:
        show.outcome(f"{failed} of {len(story.proofs)} proofs FAIL", good=False)
    else:
        show.outcome(f"all {len(story.proofs)} proofs hold", good=True)
    if keep:
        show.line("the cluster and the Spark job keep running; stop them with Ctrl-C")


def summary(story: Story, folder: Path) -> dict[str, Any]:
    """The demo's outcome for a script."""
    return {
        "holds": story.holds,
        "flights": story.flights,
        "killed": {"node": story.leader, "pid": story.killed_pid, "after": story.killed_at_record},
        "gap_ms": story.gap_ms,
        "send_s": round(story.send_s, 2),
        "into_delta_s": round(story.into_delta_s, 2),
        "proofs": [
            {"claim": proof.claim, "holds": proof.holds, "figures": proof.figures} for proof in story.proofs
        ],
        "epochs": story.found.get("epochs", []),
        "tables": str(folder / "tables"),
        "notebook": str(story.notebook_html),
    }
