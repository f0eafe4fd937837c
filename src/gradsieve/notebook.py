"""What a notebook shows of a result or an audit.

A notebook asks the object itself for its page, but pages are drawn above everything that they show. So this is the one
table that names code of a later layer; it is imported when somebody looks, and not before.
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
