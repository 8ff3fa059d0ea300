"""Print the stacks of all threads on SIGUSR1: in each Python process that a test of engines starts."""

import faulthandler
import signal

faulthandler.enable()
faulthandler.register(signal.SIGUSR1, all_threads=True)
