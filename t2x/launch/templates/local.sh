#!/bin/bash
# Trains in @@{what} on this machine.
#
#   bash FILE
#
# Rendered by, in the folder of the gin files:
#   @@{source}
#
# The lines of each process are printed after its index. SIGTERM, SIGHUP and Ctrl-C save a checkpoint in all
# processes; the exit code is then 75, and the same script resumes the run.

set -eu

@@{setup}

exec python3 -m t2x.launch.processes @@{options} -- \
@@{command}
