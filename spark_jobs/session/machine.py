"""Checks of what a Spark session needs of this machine, beside Java.

Standard library only: the doctor runs them before any package is installed.
"""

import os
import pwd
import resource
import tempfile

MIN_TEMPORARY_BYTES = 32 * 2**20  # Spark copies its jars there, 10 MB, and shuffles through it
MIN_OPEN_FILES = 512  # measured: 329 in an idle session, most of them jars


def session_problem() -> str:
    """Return the first problem that prevents a session here, with its remedy, else an empty text."""
    return user_problem() or temporary_folder_problem() or open_files_problem()


def user_problem() -> str:
    """Return what is wrong if the machine does not know the user of this process, else an empty text.

    Java would end with a traceback, since Hadoop asks for the name of the user.
    """
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return (
            f"Spark needs a user with a name, and this machine has none for the number {os.getuid()}: add a "
            "line for it to /etc/passwd"
        )
    return ""


def temporary_folder_problem() -> str:
    """Return what is wrong with the folder of temporary files: none can be written, it is mounted with
    `noexec`, or almost full; else an empty text.

    Parquet unpacks its library for compression there, and each write would fail. Without space Spark would
    end with the NullPointerException of a later step.
    """
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:
        return (
            "Python can write into no folder for temporary files: free some space, or set TMPDIR to a folder "
            "of another file system"
        )
    disk = os.statvfs(folder)
    if disk.f_flag & getattr(os, "ST_NOEXEC", 0):  # macOS reports no such flag
        return (
            f"Spark loads libraries from {folder}, which is mounted with noexec: set TMPDIR to a folder of "
            "another file system"
        )
    free_bytes = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free_bytes < MIN_TEMPORARY_BYTES:  # 0: without a limit, as a tmpfs with size=0
        return (
            f"Spark needs {MIN_TEMPORARY_BYTES // 2**20} MiB for temporary files, and {folder} has "
            f"{free_bytes / 2**20:.1f} MiB free: free some space, or set TMPDIR to a folder of another file "
            "system"
        )
    return ""


def open_files_problem() -> str:
    """Return what is wrong if this process may open too few files, else an empty text. Java raises its limit
    to the hard one."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < MIN_OPEN_FILES:
        return (
            f"Spark opens some hundred files, and this process may open {limit}: raise the limit to 4096, by "
            "`ulimit -n 4096` or LimitNOFILE of the service"
        )
    return ""
