"""Importing a file that a user names, or a module of this package."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(file: str) -> ModuleType:
    """The module of that dotted name, or of that path to a ``.py`` file; imported once."""
    path = Path(file).resolve()
    if path.suffix != ".py":
        return importlib.import_module(file)
    name = f"scaleproof_user_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    if (folder := str(path.parent)) not in sys.path:
        sys.path.insert(0, folder)  # a user's file may import its neighbours
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader, f"{path} is no Python file"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
