#!/bin/bash
# usage: skip_test.sh REASON…
# Ends as a skipped test and prints the reason.
echo "skipped: $*"
exit 77
