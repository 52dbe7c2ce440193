"""A few shapes of SVG, enough for diagrams: boxes, text, arrows. The same calls give the same bytes."""

from __future__ import annotations

from html import escape

INK, GREY, PALE, ACCENT = "#1d2731", "#5c6b7a", "#e6eef2", "#00796b"
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"


class Drawing:
    """An SVG picture on a white ground, in pixels from the upper left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.shapes: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str,
        stroke: str = "none",
        radius: int = 7,
    ) -> None:
        """Add a rectangle with round corners."""
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"'
            f' fill="{fill}" stroke="{stroke}"/>'
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
        fill: str = INK,
    ) -> None:
        """Add a line of text; ``y`` is its base line, ``anchor`` start, middle or end."""
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" font-weight="{weight}"'
            f' fill="{fill}">{escape(text, quote=False)}</text>'
        )

    def arrow(self, points: list[tuple[float, float]]) -> None:
        """Add a line through ``points`` that ends in a head."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{GREY}" stroke-width="1.8"'
            ' marker-end="url(#head)"/>'
        )

    def svg(self) -> str:
        """Return the picture as a file's text."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}"'
            f' width="{self.width:g}" height="{self.height:g}" font-family="{FONT}">'
        )
        marker = (
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6" markerHeight="6"'
            f' orient="auto"><path d="M0,1 L9,5 L0,9 z" fill="{GREY}"/></marker></defs>'
        )
        ground = f'<rect width="{self.width:g}" height="{self.height:g}" rx="7" fill="#ffffff"/>'
        return "\n".join([head, marker, ground, *self.shapes, "</svg>"]) + "\n"
