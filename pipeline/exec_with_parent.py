"""Started as ``python -I -S exec_with_parent.py PARENT_PID SIGNAL COMMAND...``: becomes COMMAND, tied to its parent.

On Linux the kernel sends SIGNAL to the command when the thread that started it ends, even if that was by SIGKILL, so
nothing is ever orphaned. Done in a process of its own between fork and exec: Python code in a forked child of a
process with threads (``preexec_fn``) may deadlock. Imports only the standard library; elsewhere than on Linux it only
becomes the command.
"""

import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Does not return."""
    parent, number, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
            print("the kernel refuses PR_SET_PDEATHSIG; a killed supervisor would leave its parts", file=sys.stderr)
        if os.getppid() != parent:  # it died before we asked
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
