"""Checks of what a Spark session needs of this machine, beside Java.

Standard library only: the doctor runs them before any package is installed.
"""

import os
import pwd
import tempfile


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
    """Return what is wrong if the folder of temporary files is mounted with `noexec`, else an empty text.

    Parquet unpacks its library for compression there, and each write would fail.
    """
    folder = tempfile.gettempdir()
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return (
            f"Spark loads libraries from {folder}, which is mounted with noexec: set TMPDIR to a folder of "
            "another file system"
        )
    return ""
