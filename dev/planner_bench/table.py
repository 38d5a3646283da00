"""Markdown tables, and targets: a figure that misses its own says so in its cell."""
from tool import machine


class Targets:
    """Every comparison is counted. `missed`: one line each; `not_ahead`: those that must not be missed at all."""

    def __init__(self):
        self.num, self.missed, self.not_ahead = 0, [], []

    def cell(self, what, figure, limit, form="{:.3f}", least=False):
        """figure <= limit (least: figure < limit, else the bench fails)"""
        self.num += 1
        text = form.format(figure)
        if figure < limit or (figure == limit and not least):
            return text
        line = f"{what}: {text}, target {'<' if least else '<='} {form.format(limit)}"
        if line not in self.missed:  # two tables may show it
            self.missed.append(line)
        if least:
            self.not_ahead.append(what)
        return f"{text} MISSED"


def section(title, command, about, *tables):
    """command: what was run for a row; about: lines; a table that is a str is a line of text"""
    lines = [f"## {title}", "", f"    {command}", "", about.strip(), f"Machine: {machine()}.", ""]
    for block in tables:
        lines += [block, ""] if isinstance(block, str) else [*block, ""]
    return lines


def table(heads, rows, text_columns=1):
    """rows of strings; the first text_columns to the left, figures to the right"""
    bars = ["---"] * text_columns + ["---:"] * (len(heads) - text_columns)
    return [f"| {' | '.join(heads)} |", f"|{'|'.join(bars)}|", *(f"| {' | '.join(row)} |" for row in rows)]
