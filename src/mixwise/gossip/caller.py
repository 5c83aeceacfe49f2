"""The line of the user's program from which a library was called."""

from __future__ import annotations

import os
import sys
import warnings
from sysconfig import get_paths
from types import FrameType

GOSSIP = os.path.dirname(__file__)
_LIBRARIES = (os.path.dirname(GOSSIP), *(get_paths()[name] for name in ("stdlib", "purelib", "platlib")), "<frozen")
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


def users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame outside of libraries."""
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or any(folder in file for folder in _INSTALLED)


def line_of(frame: FrameType | None) -> str:
    """Return the innermost line outside of libraries, such as "train.py:31"; "" if there is none."""
    frame = users_frame(frame)
    return "" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def warn_user(message: str) -> None:
    """Warn, naming the line of the user's program."""
    frame = users_frame(sys._getframe(1))
    if frame is None:  # at the end of the program
        warnings.warn(message, stacklevel=2)
    else:
        warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)
