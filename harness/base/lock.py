"""Who writes in a folder: one program at a time, whoever else may read there meanwhile."""

import errno
import fcntl
import os
import weakref
from pathlib import Path

from harness.base.errors import RecordError

FILE = ".lock"
#: What a file system says that has no locks: there nobody can be kept out.
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Lock:
    """A folder, held by this process until ``release()``, or until it is gone.

    Raises RecordError where another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o600)
        self.release = weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 64, 0).decode(errors="replace") or "another process"
            self.release()
            raise RecordError(
                f"this run is being measured by {holder}",
                where=str(folder),
                expected="one program at a time",
                fix=f"scaleproof report {folder}",
            ) from None
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}".encode(), 0)
