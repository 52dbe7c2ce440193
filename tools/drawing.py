"""A few shapes of SVG, enough for diagrams: boxes, text, arrows. The same calls give the same bytes.

A color is a name. The picture has a style sheet with each color for a light and for a dark scheme, and the
browser takes the one of the page around it.
"""

from __future__ import annotations

from html import escape

# name: on a light ground, on a dark one
COLORS = {
    "ground": ("#ffffff", "#1e2129"),
    "ink": ("#1d2731", "#e3e6ea"),
    "grey": ("#566472", "#a3adb8"),
    "pale": ("#e6eef2", "#313744"),
    "accent": ("#00796b", "#00796b"),
    "on-accent": ("#ffffff", "#ffffff"),
    "on-color": ("#1d2731", "#12161c"),
    "silver": ("#aab4be", "#8d98a3"),
    "blue": ("#bcd4e6", "#a5c4dc"),
    "green": ("#8fc1a9", "#7fb89c"),
    "yellow": ("#f2cf7e", "#e6c06a"),
    "orange": ("#e8a87c", "#dd9a6c"),
    "azure": ("#85a9d6", "#7fa5d6"),
    "violet": ("#c39bd3", "#b98ccb"),
}
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"


class Drawing:
    """An SVG picture on its ground, in pixels from the upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.shapes: list[str] = []
        self.used = {"ground"}

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str, stroke: str = "", radius: int = 7
    ) -> None:
        """Add a rectangle with round corners; ``stroke`` colors its border."""
        self.used |= {fill, stroke} - {""}
        line = f" line-{stroke}" if stroke else ""
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"'
            f' class="{fill}{line}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 13,
        anchor: str = "start",
        weight: str = "normal",
        fill: str = "ink",
    ) -> None:
        """Add a line of text; ``y`` is its base line, ``anchor`` start, middle or end."""
        self.used.add(fill)
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" font-weight="{weight}"'
            f' class="{fill}">{escape(text, quote=False)}</text>'
        )

    def arrow(self, points: list[tuple[float, float]], *, both: bool = False) -> None:
        """Add a line through ``points`` that ends in a head; ``both``: it begins with one too."""
        self.used.add("grey")
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        start = ' marker-start="url(#head)"' if both else ""
        self.shapes.append(
            f'<polyline points="{path}" fill="none" stroke-width="1.8" class="line-grey"{start}'
            ' marker-end="url(#head)"/>'
        )

    def style(self) -> str:
        """Return the style sheet of the colors in use, for both schemes."""

        def rules(scheme: int) -> str:
            return "".join(
                f".{name}{{fill:{COLORS[name][scheme]}}}.line-{name}{{stroke:{COLORS[name][scheme]}}}"
                for name in sorted(self.used)
            )

        return f"<style>{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}</style>"

    def svg(self) -> str:
        """Return the picture as a file's text."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}"'
            f' width="{self.width:g}" height="{self.height:g}" font-family="{FONT}">'
        )
        marker = (
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6" markerHeight="6"'
            ' orient="auto-start-reverse"><path d="M0,1 L9,5 L0,9 z" class="grey"/></marker></defs>'
        )
        ground = f'<rect width="{self.width:g}" height="{self.height:g}" rx="7" class="ground"/>'
        return "\n".join([head, self.style(), marker, ground, *self.shapes, "</svg>"]) + "\n"
