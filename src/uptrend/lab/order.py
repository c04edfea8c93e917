"""Which hypothesis waits for which."""

from collections.abc import Mapping, Sequence

from uptrend.records import Hypothesis


def in_order(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Hypotheses with those first that others among them wait for; otherwise as given."""
    left, done = list(hypotheses), list[Hypothesis]()
    while left:
        waiting = {h.id for h in left}
        free = [h for h in left if not waiting & set(h.prerequisites)] or left[:1]  # a circle is refuse.py's to name
        done.append(free[0])
        left.remove(free[0])
    return done


def circle(start: str, hypotheses: Mapping[str, Hypothesis]) -> list[str]:
    """The way from a hypothesis over prerequisites back to itself, or nothing."""
    ways, seen = [[start]], {start}
    while ways:
        way = ways.pop()
        for id in hypotheses[way[-1]].prerequisites if way[-1] in hypotheses else ():
            if id == start:
                return [*way, start]
            if id not in seen:
                seen.add(id)
                ways.append([*way, id])
    return []
