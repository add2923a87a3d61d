"""The lock on a destination: a file in its journal's folder, which goes when the journal goes."""

import os
from pathlib import Path
from typing import BinaryIO

from csf_tool.disk.new_file import lock
from csf_tool.disk.own_files import LOCK, OWN_FOLDER, RECORDS
from csf_tool.disk.reader import writing_fault
from csf_tool.errors import EnvironmentFault


def make_lock(destination: Path) -> None:
    """Make the journal's folder, and the file in it that is locked.

    Raises:
        FileNotFoundError: another process removes the folder meanwhile.
        EnvironmentFault: the system cannot write there.
    """
    folder = destination / OWN_FOLDER
    try:
        (folder / RECORDS).mkdir(parents=True, exist_ok=True)
        os.close(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise writing_fault(str(folder), error) from error


def acquire_lock(destination: Path, *, wait: bool) -> BinaryIO:
    """The lock file of a destination's journal, locked until it is closed.

    Raises:
        FileNotFoundError: another process closed its run and removed the file, before it was locked or after.
        EnvironmentFault: another process holds it, and `wait` is false.
    """
    path = destination / OWN_FOLDER / LOCK
    held = path.open("r+b")
    try:
        if lock(held.fileno(), wait=wait) is False:
            raise EnvironmentFault(f"{destination}: another process is writing into it")
        if not os.path.samestat(os.fstat(held.fileno()), path.stat()):
            raise FileNotFoundError(path)
    except BaseException:
        held.close()
        raise
    return held
