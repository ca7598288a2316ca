"""Work in a process of its own, forked from one that has no threads.

A fork of the test process itself may copy a lock that another of its threads holds, and then waits for ever.
"""

import multiprocessing

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["tests.training.test_resuming", "tests.training.test_hardening"])


def exit_code_of(work, *given):
    """The exit code of a process that does `work(*given)`: minus the signal that ended it, if one did."""
    child = _PROCESSES.Process(target=work, args=given)
    child.start()
    child.join(120)
    return child.exitcode
