"""Modules that are imported when they are first used, for those that take seconds."""

from __future__ import annotations

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType


def lazily(name: str) -> ModuleType:
    """The module of this name, whose import waits for its first attribute: every process collects all tests."""
    found = find_spec(name)
    assert found is not None and found.loader is not None
    found.loader = LazyLoader(found.loader)
    module = module_from_spec(found)
    sys.modules[name] = module
    found.loader.exec_module(module)
    return module
