"""What a notebook shows of a result or an audit.

A notebook asks the object itself for its page, but the code of pages is in a later layer than the objects. So this is
the one table that names code of a later layer; it is imported only when a notebook shows an object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradsieve.registry import Registry

PAGES: Registry[Callable[[Any], str]] = Registry(
    "page",
    {
        "result": "gradsieve.report.html:result_fragment",
        "audit": "gradsieve.report.html:audit_fragment",
    },
)
