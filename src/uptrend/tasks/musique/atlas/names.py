"""Invented names, put together from syllables: plenty of them, plain ASCII, one to three short words.

Each kind of entity has endings of its own, so that a city sounds like a city. There are about 8,000 given names
of women, as many of men, and 15,000 family names: more than 10^8 people.
"""

import random

_STARTS = """
Al An Bel Bren Cal Cor Dar Del El Em Fal Fen Gar Hal Hel Il Jor Kal Kel Lar
Lin Mar Mel Mir Nor Os Pel Per Ral Ren Sal Sel Tal Tor Ul Val Ved Vin Yor Zel
"""
MIDDLES = ["", "d", "v", "m", "r", "t", "l", "n", "b", "k"]
INNER = ["d", "v", "m", "g", "t", "l", "n", "b", "k", "s", "ab", "eb", "ol", "ar", "em"]
VOWELS = ["", "a", "e", "i", "o", "u", "en", "er", "an"]
"""For endings that begin with a consonant."""
_ENDINGS = {
    "woman": "a ia ena ira ela ina ora isa ana uma ika ea una ette ys iva eda ine issa ona",
    "man": "o an en in or eth ek ard ic on as ir olf im ero ol und ath iel ov",
    "family": """
        onen ander ovic elli essen ardo inger ault ovar esku idze omber ishin acre ayev
        ondo uley addock emberg orne istad owell ikson ulin orath
        """,
    "city": "ton burg ford mouth stad holm by wick port haven bridge gate",
    "region": "ania ovia emark ashire eria onia ensia aland olia umbria",
    "river": "el une ar is ey ome ack und ava ent",
    "mountain": "horn fell crag spitz berg tooth dome ridge",
    "word": "ane ell ost ith une ar om essa ovar ind ulla ask erin olm ade isk amo ent ora yne",
}
_COMMON = {
    "novel": """
        Lanterns Tides Orchards Shadows Letters Gardens Winters Candles Mirrors Voices Roads Ashes Feathers Songs
        Keys Storms Ladders Harbors Secrets Bells Mornings Promises Embers Wolves Rivers Islands Crowns Stars
        Cousins Maps Stones Thieves Windows Dreams Swallows Oaths Sparrows Towers Ghosts Lilies
        """,
    "painting": """
        Weaver Miller Shepherd Dancer Fisherman Widow Pilgrim Gardener Hunter Soldier Beggar Juggler Carpenter Nurse
        Baker Smith Scholar Drummer Bride Monk Queen Harper Sailor Reaper Potter Fiddler Ferryman Maiden Tailor Cooper
        Bishop Knight Astronomer Goatherd Seamstress Gambler Prophet Falconer Rider Orphan
        """,
    "company": """
        Anchor Lion Compass Hammer Wheel Eagle Oak Rose Falcon Arrow Barrel Badger Castle Comet Dolphin Elm Fox Griffin
        Heron Horn Kite Lark Leopard Maple Needle Otter Ibis Pelican Phoenix Plow Raven Saddle Shield Spindle Swan
        Thistle Tiger Trumpet Unicorn Willow
        """,
    "ship": """
        Swift Proud Silver Golden Gallant Northern Southern Crimson Bright Faithful Noble Royal Merry Lucky Bold
        Eastern Western Brave White Black Green Scarlet Ancient Blessed Daring Distant Eternal Fearless Gentle Grand
        Happy Iron Jolly Lonely Mighty Patient Restless Sacred Stormy Valiant
        """,
}
STARTS = _STARTS.split()
ENDINGS = {shape: syllables.split() for shape, syllables in _ENDINGS.items()}
COMMON = {kind: words.split() for kind, words in _COMMON.items()}
MEANT = {"Albania", "Corona", "Pelvis"}
"""Syllables make these too, but they are taken."""
TRIES = 200
"""How often a name without words in common is looked for; only very large worlds ever need more than a few."""


class Names:
    """The names of one world: pairwise different, and without a word in common unless asked for."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._words: set[str] = set(MEANT)

    def new(self, kind: str, *, female: bool = False, namesake: str = "") -> str:
        """A name for an entity of this kind; with a namesake (of two parts), it has the first or the last of them."""
        kept = self._rng.choice((0, -1))
        words, fresh = [""], [""]
        for _ in range(TRIES):
            words = self._draw(kind, female)
            fresh = [word for word in words if word != "of"]
            if namesake:
                fresh.remove(words[kept])
                words[kept] = namesake.split()[kept]
            if self._words.isdisjoint(fresh):
                break
        self._words.update(fresh)
        return " ".join(words)

    def _draw(self, kind: str, female: bool) -> list[str]:
        if kind == "person":
            return [self._spell("woman" if female else "man", MIDDLES), self._spell("family", INNER)]
        if kind == "company":
            return [self._spell("word", MIDDLES), self._rng.choice(COMMON[kind])]
        if kind == "ship":
            return [self._rng.choice(COMMON[kind]), self._spell("word", MIDDLES)]
        if kind in COMMON:
            return [self._rng.choice(COMMON[kind]), "of", self._spell("word", INNER)]
        return [self._spell(kind, VOWELS if kind in ("city", "mountain") else MIDDLES)]

    def _spell(self, shape: str, middles: list[str]) -> str:
        choose = self._rng.choice
        return choose(STARTS) + choose(middles) + choose(ENDINGS[shape])
