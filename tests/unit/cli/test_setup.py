"""The set-up and the doctor: completion, and messages about missing parts."""

import ast
import errno
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from app.cli.main import cli
from app.setup import checks
from app.setup.checks import State, check_machine
from app.setup.command import main
from app.setup.environment import (
    BUILD_PACKAGES,
    ROOT,
    Environment,
    PackageCounter,
    SetupFailed,
    lock_packages,
)
from tests.support.cluster import free_ports

LOCK = (ROOT / "requirements.lock").read_text()


def test_the_lock_pins_every_package_by_hash_and_names_no_host() -> None:
    packages = lock_packages(LOCK)
    assert len(packages) > 60
    for name, block in packages.items():
        assert re.match(rf"{name}==[\w.]+( ; .+)? \\\n    --hash=sha256:[0-9a-f]{{64}}", block), block[:80]
    assert "://" not in LOCK
    assert set(BUILD_PACKAGES) <= set(packages)


def test_the_lock_has_all_that_requirements_in_wants() -> None:
    lines = [line.split("#")[0].strip() for line in (ROOT / "requirements.in").read_text().splitlines()]
    wanted = {re.split(r"[=<>]", line)[0] for line in lines if line}
    assert wanted <= set(lock_packages(LOCK))


def test_the_lock_has_all_that_its_packages_need() -> None:
    """The set-up lets pip install these packages and no others."""
    packages = lock_packages(LOCK)
    for distribution in metadata.distributions():
        if canonicalize_name(distribution.name) in packages:
            needed = map(Requirement, distribution.requires or ())
            for each in needed:
                if each.marker is None or each.marker.evaluate({"extra": ""}):
                    block = packages[canonicalize_name(each.name)]
                    version = block.removeprefix(f"{canonicalize_name(each.name)}==").split()[0]
                    assert each.specifier.contains(version), (distribution.name, each)


def test_three_processes_install_each_package_once_and_by_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_of_them, installed = threading.Barrier(3, timeout=30), []

    def run(environment: Environment, command: Sequence[str], what: str, *_: object) -> str:
        assert {"--require-hashes", "--no-deps"} <= set(command)
        names = list(lock_packages(Path(command[-1]).read_text()))
        if what != "install the build tools":
            installed.extend(names)
            all_of_them.wait()
        return ""

    monkeypatch.setattr(Environment, "_run", run)
    checkout(tmp_path, LOCK)._install_packages()
    assert sorted(installed) == sorted(lock_packages(LOCK))


def test_spark_that_cannot_be_installed_ends_the_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(environment: Environment, command: Sequence[str], what: str, *_: object) -> str:
        if what == "install Spark":
            raise SetupFailed("no space left")
        return ""

    monkeypatch.setattr(Environment, "_run", run)
    with pytest.raises(SetupFailed, match="no space left"):
        checkout(tmp_path, LOCK)._install_packages()


def test_an_old_python_can_read_the_entry_far_enough_to_report_its_version() -> None:
    ast.parse((ROOT / "app" / "setup" / "__main__.py").read_text(), feature_version=(3, 6))


def checkout(folder: Path, lock: str = "a==1 \\\n    --hash=sha256:00\n") -> Environment:
    (folder / "requirements.lock").write_text(lock)
    (folder / "pyproject.toml").write_text("[project]\n")
    return Environment(folder)


def finished(environment: Environment) -> None:
    environment.python.parent.mkdir(parents=True)
    environment.python.symlink_to(sys.executable)
    environment.stamp.write_text(json.dumps(environment.fingerprint()))


def test_a_finished_set_up_is_not_done_again_until_the_lock_changes(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    assert not environment.is_ready()
    finished(environment)
    assert environment.is_ready()
    environment.set_up()  # would fail if it did anything
    environment.lock.write_text("b==1\n")
    assert not environment.is_ready()


def test_changed_java_is_compiled_by_the_next_set_up(tmp_path: Path) -> None:
    """Without it `make demo` of a newer version failed, and advised the set-up, which did nothing."""
    environment = checkout(tmp_path)
    source = tmp_path / "spark_jobs" / "session" / "LogTable.java"
    source.parent.mkdir(parents=True)
    source.write_text("class LogTable {}")
    finished(environment)
    assert environment.is_ready()
    source.write_text("final class LogTable {}")
    assert not environment.is_ready()


def test_a_python_without_ensurepip_gets_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.setup.environment.find_spec", lambda _: None)
    with pytest.raises(SetupFailed, match="apt-get install python3-venv"):
        checkout(tmp_path).set_up()


@pytest.mark.parametrize("letter", [*':"$`\\,*?[]{}', "\n"])
def test_a_path_that_venv_or_spark_cannot_use_is_refused_at_the_start(tmp_path: Path, letter: str) -> None:
    folder = tmp_path / f"my{letter}folder"
    folder.mkdir()
    with pytest.raises(SetupFailed, match="move the checkout") as failed:
        checkout(folder).set_up()
    assert f"contains {letter!r}, which" in str(failed.value)
    assert sorted(each.name for each in folder.iterdir()) == ["pyproject.toml", "requirements.lock"]


def test_the_letters_of_other_paths_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my dir" / "it's ü #1%41"
    folder.mkdir(parents=True)
    monkeypatch.setattr("app.setup.environment.find_spec", lambda _: None)  # the step after the path
    with pytest.raises(SetupFailed, match="ensurepip"):
        checkout(folder).set_up()


def test_a_checkout_that_cannot_be_written_ends_the_set_up_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "/clone/.cache")

    monkeypatch.setattr(Environment, "set_up", refuse)
    assert main([]) == 1
    errors = capsys.readouterr().err
    assert "set-up failed: [Errno 30] Read-only file system: '/clone/.cache'" in errors
    assert f".cache of {ROOT}" in errors


def test_a_package_that_a_killed_pip_has_begun_is_installed_again(tmp_path: Path) -> None:
    packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    for name, files in (
        ("whole-1", ("METADATA", "INSTALLER", "RECORD")),
        ("before_scripts-1", ("METADATA", "RECORD")),  # RECORD of the wheel
        ("at_the_end-1", ("METADATA", "INSTALLER")),
    ):
        (packages / f"{name}.dist-info").mkdir(parents=True)
        for file in files:
            (packages / f"{name}.dist-info" / file).touch()
    checkout(tmp_path)._remove_partial_packages()
    assert [each.name for each in packages.iterdir()] == ["whole-1.dist-info"]


def test_a_failing_step_names_itself_its_output_and_its_log(tmp_path: Path) -> None:
    environment = checkout(tmp_path)
    environment.log.parent.mkdir()
    with pytest.raises(SetupFailed, match=r"(?s)could not do it.*boom.*setup\.log"):
        environment._run([sys.executable, "-c", "print('boom'); raise SystemExit(3)"], "do it")


def test_the_packages_are_counted_while_pip_installs_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counter = PackageCounter(20, tmp_path)
    for number in range(12):
        counter.see(f"Collecting package{number}==1\n")
        (tmp_path / f"lib/python3/site-packages/package{number}-1.dist-info").mkdir(parents=True)
    for names in ("package0, package1", "package2"):  # of two processes
        counter.see(f"Installing collected packages: {names}\n")
    counter.end()
    assert capsys.readouterr().out.split("\n") == ["    10/20 package9", "    12/20 installed", ""]


def test_a_moved_environment_is_not_activated(tmp_path: Path) -> None:
    """A copied `activate` would put the commands of the old checkout on the PATH."""
    old = checkout(tmp_path)
    script = old.folder / "bin" / "activate"
    script.parent.mkdir(parents=True)
    script.write_text("echo active\n")
    old._guard_activation()
    copied = tmp_path / "it's new" / "bin" / "activate"
    copied.parent.mkdir(parents=True)
    copied.write_text(script.read_text())
    for path, code in ((script, 0), (copied, 1)):
        done = subprocess.run(
            ["bash", "-c", '. "$0"', path],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert (done.returncode, done.stdout) == (code, "active\n" if code == 0 else "")
    assert f"created in {old.folder.resolve()}; run `make setup`" in done.stderr


def test_the_doctor_sees_packages_that_differ_from_the_lock(tmp_path: Path) -> None:
    environment = checkout(
        tmp_path, "pytest==0.1 \\\n    --hash=sha256:00\nno-such==2 \\\n    --hash=sha256:00\n"
    )
    found = checks.check_packages(environment)
    assert found.state is State.MISSING
    assert "instead of 0.1" in found.detail
    assert "no-such is absent" in found.detail
    assert "make setup" in found.remedy


def test_the_doctor_reports_taken_ports_and_ends_with_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(cli, ["doctor", "--port", str(port), "--nodes", "1", "--json"])
    assert result.exit_code == 1
    findings = {check["name"]: check for check in json.loads(result.output)["checks"]}
    assert findings["ports"]["state"] == "missing"
    assert str(port) in findings["ports"]["detail"]
    assert "--port" in findings["ports"]["remedy"]
    assert all(check["remedy"] for check in findings.values() if check["state"] != "ok")


def test_a_reader_that_closes_the_output_of_the_doctor_gets_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "app/setup", "--doctor"], stdout=writer, stderr=subprocess.PIPE, timeout=120
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_the_doctor_finds_what_the_tests_run_with(tmp_path: Path) -> None:
    for check in (checks.check_python(), checks.check_java(), checks.check_jars(), checks.check_data_set()):
        assert check.state is State.OK, check
    assert checks.check_disk(tmp_path / "no" / "such" / "folder").state is State.OK


def test_the_doctor_reports_a_folder_in_which_the_user_may_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != tmp_path or not mode & os.W_OK)
    found = checks.check_disk(tmp_path / "data")
    assert found.state is State.MISSING
    assert found.detail.endswith(f"free at {tmp_path}, where this user may not write")
    assert found.remedy


def test_the_doctor_reports_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    found = checks.check_disk(tmp_path / "data" / "n1")
    assert (found.state, found.detail) == (State.MISSING, f"{tmp_path / 'data'} is not a folder")
    assert found.remedy


def test_the_doctor_reports_what_a_session_of_spark_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.check_session().state is State.OK
    with monkeypatch.context() as changed:
        changed.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
        found = checks.check_session()
        assert (found.state, found.remedy) == (State.MISSING, "set TMPDIR to a folder of another file system")
        assert found.detail.endswith("mounted with noexec")
    with monkeypatch.context() as changed:
        changed.delattr(os, "ST_NOEXEC")  # as on macOS
        assert checks.check_session().state is State.OK
    with monkeypatch.context() as changed:
        changed.setattr(tempfile, "tempdir", None)
        changed.setattr(tempfile, "_candidate_tempdir_list", list)  # as if all of them were full or read-only
        found = checks.check_session()
        assert (found.state, found.remedy.split(",")[0]) == (State.MISSING, "free some space")
        assert found.detail == "Python can write into no folder for temporary files"
    with monkeypatch.context() as changed:
        disk = SimpleNamespace(f_flag=0, f_blocks=100, f_bavail=4, f_frsize=2**20)
        changed.setattr(os, "statvfs", lambda _: disk)
        found = checks.check_session()
        assert found.detail == (
            f"Spark needs 32 MiB for temporary files, and {tempfile.gettempdir()} has 4.0 MiB free"
        )
        assert found.remedy.startswith("free some space, or set TMPDIR")
        disk.f_blocks = disk.f_bavail = 0  # as a tmpfs with size=0, which has no limit
        assert checks.check_session().state is State.OK
    with monkeypatch.context() as changed:
        changed.setattr(resource, "getrlimit", lambda _: (256, 256))
        found = checks.check_session()
        assert (found.state, found.remedy.split(",")[0]) == (State.MISSING, "raise the limit to 4096")
        assert found.detail == "Spark opens some hundred files, and this process may open 256"
        for hard in (4096, resource.RLIM_INFINITY):  # Java raises its own limit
            changed.setattr(resource, "getrlimit", lambda _, hard=hard: (256, hard))
            assert checks.check_session().state is State.OK
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)
    found = checks.check_session()
    assert (found.state, found.remedy) == (State.MISSING, "add a line for it to /etc/passwd")


def test_the_doctor_needs_no_package() -> None:
    report = "from app.setup.command import report; report()"
    found = subprocess.run([sys.executable, "-S", "-c", report], cwd=ROOT, capture_output=True, text=True)
    assert found.stderr == ""
    assert "missing  packages" in found.stdout
    assert "jars: " in found.stdout


def test_an_installation_from_a_wheel_is_not_measured_by_the_lock_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "Environment", lambda: Environment(tmp_path / "site-packages"))
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name == "pyspark" else object())
    found = {check.name: check for check in check_machine(port=24_199)}
    assert list(found) == ["python", "extras", "ports", "disk", "memory"]
    assert found["extras"].detail == "the client and arrow, schemas, server"
    assert "PATH_OF_THE_WHEEL[spark]" in found["extras"].remedy


def test_doctor_checks_the_addresses_and_the_folder_of_a_node(tmp_path: Path) -> None:
    """With --config, ports and disk of a local cluster would be those of another place."""
    config = tmp_path / "cluster.toml"

    def found(host: str, port: int) -> dict[str, tuple[str, str]]:
        config.write_text(
            f'[cluster]\nid = "c"\n[[nodes]]\nid = "n1"\nlisten = "127.0.0.1:{port}"\n'
            f'peer_listen = "{host}:{peer_port}"\ndata = "{tmp_path}/deep/n1"\n'
            "[security]\nallow_insecure = true\n"
        )
        result = CliRunner().invoke(cli, ["doctor", "--json", "--config", str(config)])
        checks = json.loads(result.stdout)["checks"]
        assert len({check["name"] for check in checks}) == len(checks)
        return {check["name"]: (check["state"], check["detail"]) for check in checks}

    port, peer_port = free_ports(2)
    free = found("127.0.0.1", port)
    assert (free["ports"][0], free["disk"][0]) == ("ok", "ok")
    assert free["ports"][1] == f"127.0.0.1:{port}, 127.0.0.1:{peer_port} are free"  # ha_listen has none yet
    same = f"peer_listen 127.0.0.1:{peer_port}: `listen` has the same address"
    assert found("127.0.0.1", peer_port)["ports"] == ("missing", same)
    assert free["disk"][1].endswith(f"free at {tmp_path}")
    with socket.create_server(("127.0.0.1", port)):
        assert found("127.0.0.1", port)["ports"] == ("warning", f"in use: listen 127.0.0.1:{port}")
    state, detail = found("192.0.2.1", port)["ports"]  # an address of documentation: of no machine
    assert state == "missing"
    assert detail.startswith("peer_listen 192.0.2.1:")


def test_make_help_lists_every_target_that_has_a_description() -> None:
    described = re.findall(r"^([^\s.:#]+):.*## ", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    printed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[1] for line in printed.splitlines()] == described
