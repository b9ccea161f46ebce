# Sourced by ./demo and ./check: brings a Python environment with rayka in it, and says what it does.
# Sets PYTHON. Needs Python 3.11 or 3.12; a second run finds everything there and takes no time.
# RAYKA_VENV names another environment than .venv. One that this script has not made is used as it is.

RAYKA_VENV=$(realpath -m "${RAYKA_VENV:-.venv}")
unset PYTHONDONTWRITEBYTECODE  # without bytecode every process of a broker, and every test worker, compiles all again

say() { printf '%s\n' "$*" >&2; }

as_root() { [ "$(id -u)" = 0 ]; }

# run_logged LOG TITLE COMMAND...: one line with the seconds that pass; the end of LOG if it fails.
run_logged() {
  local log=$1 title=$2 started=$SECONDS pid
  shift 2
  "$@" >"$log" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    [ -t 2 ] && printf '\r%s ... %d s' "$title" $((SECONDS - started)) >&2
    sleep 0.2
  done
  if wait "$pid"; then
    [ -t 2 ] && printf '\r' >&2
    say "$title ... done in $((SECONDS - started)) s"
  else
    [ -t 2 ] && printf '\n' >&2
    say "$title failed; the end of $log:"
    tail -n 20 "$log" >&2
    return 1
  fi
}

# persistent COMMAND...: runs what fetches something from the network, three times at most.
persistent() {
  local pause
  for pause in 5 20; do
    "$@" && return
    echo "once more in $pause s"
    sleep "$pause"
  done
  "$@"
}

find_python() {
  local candidate
  for candidate in "${RAYKA_PYTHON:-}" python3.11 python3.12 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  say "rayka needs Python 3.11 or 3.12, and finds neither (RAYKA_PYTHON=/path/to/python3.11 names one)"
  return 1
}

make_venv() {
  local python=$1
  rm -rf "$RAYKA_VENV"
  if ! "$python" -m venv "$RAYKA_VENV" >/dev/null 2>&1; then
    # Debian keeps venv in a package of its own.
    as_root && command -v apt-get >/dev/null || { say "$python cannot make a virtual environment (python3-venv)"; return 1; }
    apt-get update -qq && apt-get install -y -qq "python3-venv" >/dev/null
    "$python" -m venv "$RAYKA_VENV"
  fi
}

setup_python() {
  local python stamp wanted
  python=$(find_python)
  stamp="$RAYKA_VENV/.set-up-for"
  wanted=$(cat pyproject.toml scripts/setup.sh scripts/native_build.py rayka/client/native_*.[ch] | sha256sum
    "$python" --version; pwd)
  PYTHON="$RAYKA_VENV/bin/python"
  export PYTHON
  [ "$RAYKA_VENV" = "$PWD/.venv" ] || [ ! -e "$RAYKA_VENV" ] || is_ours "$stamp" || return 0
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || [ ! -x "$PYTHON" ]; then
    say "Setting up $RAYKA_VENV with $("$python" --version) (once; a few minutes, mostly downloads)"
    [ "$("$PYTHON" --version 2>/dev/null)" = "$("$python" --version)" ] || make_venv "$python"
    run_logged "$RAYKA_VENV/set-up.log" "Installing rayka and what its demo and tests need" \
      persistent "$PYTHON" -m pip install --disable-pip-version-check -q --no-compile -e '.[dev,demo]'
    "$PYTHON" -m compileall -q -j 0 "$RAYKA_VENV/lib" >/dev/null || true  # pip does it on one core
    printf '%s\n' "$wanted" >"$stamp"
  fi
}

# is_ours STAMP: whether this script made the environment, for this checkout. Any other is not to be removed.
is_ours() { [ "$(tail -n 1 "$1" 2>/dev/null)" = "$PWD" ]; }

# PySpark 4 in an environment of its own, since RayDP needs PySpark 3.5. Everything else it takes from RAYKA_VENV.
# Sets SPARK4_PYTHON. Call it after setup_python.
setup_spark4() {
  local venv="$RAYKA_VENV/spark4" packages wanted
  SPARK4_PYTHON="$venv/bin/python"
  export SPARK4_PYTHON
  packages=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  wanted=$("$PYTHON" -c 'import tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print(extras["spark4"][0])'; sha256sum <scripts/setup.sh; "$PYTHON" --version)
  [ "$(cat "$venv/.set-up-for" 2>/dev/null)" != "$wanted" ] || return 0
  rm -rf "$venv"
  "$PYTHON" -m venv --without-pip "$venv"
  run_logged "$RAYKA_VENV/spark4.log" "Installing PySpark 4" \
    persistent "$PYTHON" -m pip --python "$SPARK4_PYTHON" install --disable-pip-version-check -q --no-deps --no-compile \
    "$(head -n 1 <<<"$wanted")" "py4j>=0.10.9.9,<0.10.10"
  printf "import site; site.addsitedir('%s')\n" "$packages" \
    >"$("$SPARK4_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rayka-packages.pth"
  printf '%s\n' "$wanted" >"$venv/.set-up-for"
}

# Ray Serve in an environment of its own: with its packages every start of Ray takes a second more of processor time, also
# where nobody uses them. What RAYKA_VENV has is taken from there. Sets SERVE_PYTHON. Call it after setup_python.
setup_serve() {
  local venv="$RAYKA_VENV/serve" packages wanted
  SERVE_PYTHON="$venv/bin/python"
  export SERVE_PYTHON
  packages=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  wanted="ray[serve]==$("$PYTHON" -c 'import ray; print(ray.__version__)') for $("$PYTHON" --version)"
  [ "$(cat "$venv/.set-up-for" 2>/dev/null)" != "$wanted" ] || return 0
  rm -rf "$venv"
  "$PYTHON" -m venv --without-pip "$venv"
  printf "import site; site.addsitedir('%s')\n" "$packages" \
    >"$("$SERVE_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rayka-packages.pth"
  run_logged "$RAYKA_VENV/serve.log" "Installing Ray Serve" \
    persistent "$PYTHON" -m pip --python "$SERVE_PYTHON" install --disable-pip-version-check -q --no-compile "${wanted%% *}"
  printf '%s\n' "$wanted" >"$venv/.set-up-for"
}
