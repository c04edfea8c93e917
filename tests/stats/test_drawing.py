"""Pictures on a page: labels escaped, ids that do not collide, and the page's colors."""

import re

from uptrend.stats.drawing import COLORS, plotting, to_svg


def test_an_svg_for_a_page_takes_its_colors_and_keeps_texts_whole() -> None:
    with plotting() as plt:
        figure, axes = plt.subplots()
        axes.plot([0, 1], [0.1234567, 0.2], color=COLORS[1], label="$a <b>")
        axes.set_yticks([0.15], ["0.1234567"])
        axes.legend()
        svg = to_svg(figure, 'curves "of" <b>')
    assert svg.startswith('<svg role="img" aria-label="curves &quot;of&quot; &lt;b&gt;"')
    assert f"var(--c1, {COLORS[1]})" in svg
    assert "0.1234567" in svg
    assert "$a &lt;b&gt;" in svg
    assert not re.search(r"<style|<metadata|xmlns|https?:", svg)
    ids = re.findall(r' id="([^"]*)"', svg)
    assert all(f"#{id}" in svg for id in ids)
