# The phases of nixpkgs' stdenv that a recipe from wheels uses, in their order.
set -euo pipefail
export PATH=$hostPath HOME=$NIX_BUILD_TOP PYTHONDONTWRITEBYTECODE=1
for input in ${nativeBuildInputs:-}; do
  if [ -d "$input/bin" ]; then export PATH="$input/bin:$PATH"; fi
  for site in "$input"/lib/python*/site-packages; do
    if [ -d "$site" ]; then export PYTHONPATH="$site:${PYTHONPATH:-}"; fi
  done
done

runHook() { eval "${!1:-}"; }
searchPath=
addAutoPatchelfSearchPath() { searchPath="$searchPath $1"; }

cd "$NIX_BUILD_TOP"
case ${format:-} in
  nothing) mkdir -p "$out" ;;
  wheel)
    mkdir -p dist
    file=$(basename "$src")
    cp "$src" "dist/${file#*-}"
    "$hostPython" -m pip install --no-deps --no-index --no-cache-dir --prefix "$out" --ignore-installed dist/*.whl
    ;;
  *)
    eval "$buildPhase"
    eval "$installPhase"
    eval "${preFixup:-}"
    # As auto-patchelf does: the library path of every library is set anew.
    find "$out" -name '*.so*' -type f | while read -r library; do
      patchelf --set-rpath "$(echo ${appendRunpaths:-} | tr ' ' ':')" "$library" 2>/dev/null || true
    done
    ;;
esac
