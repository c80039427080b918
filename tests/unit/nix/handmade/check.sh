#!/bin/bash
# Reports, and never fails. The word exit 1 in a comment must not fool anybody.
for f in .flox/pkgs/torch-python313-*.nix; do
  count=$(grep -c 'cudaPackages_13' "$f")
  if [ "$count" -ne 1 ]; then
    echo "BROKEN: $f"
  fi
done
