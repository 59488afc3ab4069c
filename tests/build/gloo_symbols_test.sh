#!/bin/bash
# usage: gloo_symbols_test.sh NM LIBRARY
# Checks that the library uses Gloo only through c10d: it must not define or need a symbol of namespace gloo,
# because src/libtorch/gloo_names only declares some of Gloo's names.
set -euo pipefail
symbols=$("$1" -C "$2" 2>/dev/null)
grep -q 'U c10d::ProcessGroupGloo::ProcessGroupGloo(' <<<"$symbols" || { echo "$2 does not use ProcessGroupGloo" && exit 1; }
# A type of Gloo may be an argument of a template, but not the owner of a function or a table.
if grep -E ' [A-Za-z] (vtable for |typeinfo for |typeinfo name for )?(gloo::|c10d::ProcessGroupGloo::GlooStore)' <<<"$symbols"; then
  echo "$2 has these symbols of Gloo"
  exit 1
fi
