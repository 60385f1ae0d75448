# Sourced by the other scripts: makes .venv on first use and installs tuner into it; later calls start at once.
# PYTHON chooses the interpreter to make it with (3.11 or newer); $extras what is installed, which is dev unless set.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
# What is installed depends on these two files, so a change of either installs anew.
wanted=$(cat "$root/pyproject.toml" "$root/constraints.txt" | cksum)
extras=${extras:-dev}
installed=$(cat "$root/.venv/installed" 2>/dev/null || true)
if [ "$installed" != "$wanted $extras" ] && [ "$installed" != "$wanted dev" ]; then
  echo "Installing into $root/.venv (first use, a minute or two)" >&2
  base=${PYTHON:-python3}
  "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "error: $base is older than Python 3.11: set PYTHON to a newer one" >&2; exit 2; }
  [ -x "$python" ] || "$base" -m venv "$root/.venv"
  # torch first and pinned: asked for together with the rest, a build for another device may be chosen.
  "$python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" torch >&2 &&
    "$python" -m pip install --quiet --disable-pip-version-check -c "$root/constraints.txt" -e "$root[$extras]" >&2 ||
    { echo "error: the installation failed: see pip's message above" >&2; exit 1; }
  echo "$wanted $extras" >"$root/.venv/installed"
fi
