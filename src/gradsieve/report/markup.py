"""HTML from values. All text is escaped, so that names of classes, columns or files cannot inject markup."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

VOID = {"br", "img", "input", "meta"}  # elements without content and end tag
UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff\ufffe\uffff\ud800-\udfff]")  # not allowed in HTML


class Html(str):
    """Text that is safe markup: made from escaped values, or a file of this package."""


Child = str | int | float | None | Iterable["Child"]
Attribute = str | int | float | bool | None


def text(value: object) -> Html:
    """A value as escaped text; characters that are not allowed in HTML are replaced."""
    return Html(html.escape(UNSEEN.sub("\ufffd", str(value)), quote=True))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """An element. ``class_`` stands for class, ``aria_label`` for aria-label; None and False leave one out."""
    opening = name + "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{text(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{opening}>" if name in VOID else f"<{opening}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Html:
    """The children in a row: markup as it is, other values as escaped text, nothing for None."""
    return Html("".join(content(child) for child in children))


def content(child: Child) -> Html:
    """A child of an element as markup."""
    if child is None:
        return Html("")
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int | float):
        return text(child)
    return join(child)
