"""A file with a trial's configuration, for programs that read one."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tuner.errors import WorkloadError, one_line


def write_config(path: Path, template: Mapping[str, object], values: Mapping[str, object]) -> None:
    """Writes a YAML, TOML or JSON file, by its ending, with what a template has and these values in its place.

    Raises ``WorkloadError`` for a value that such a file cannot have.
    """
    try:
        text = _WRITERS[path.suffix](_merged(template, values))
    except Exception as error:  # each library has its own
        raise WorkloadError(f"{path.name} cannot hold the configuration: {one_line(error)}") from error
    path.write_text(text, encoding="utf-8")


def _merged(template: Mapping[str, object], values: Mapping[str, object]) -> dict[str, object]:
    """The values within a template: mappings of both are merged in turn."""
    merged = dict(template)
    for key, value in values.items():
        inner = merged.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(inner, value) if both else value  # type: ignore[arg-type]
    return merged


def _yaml(content: Mapping[str, object]) -> str:
    import yaml

    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _toml(content: Mapping[str, object]) -> str:
    import tomlkit

    return tomlkit.dumps(content)


_WRITERS: Mapping[str, Callable[[Mapping[str, object]], str]] = {
    ".yaml": _yaml,
    ".yml": _yaml,
    ".toml": _toml,
    ".json": lambda content: json.dumps(content, indent=2),
}
