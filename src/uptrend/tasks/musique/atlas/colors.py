"""Sentences that say nothing which a question could ask for: they make paragraphs longer, as real ones are."""

from uptrend.tasks.musique.atlas.relation import Kind

COLORS: dict[Kind, tuple[str, ...]] = {
    "person": (
        "{s} kept bees and was fond of long walks before dawn.",
        "In later years {s} suffered from poor sight and rarely traveled.",
        "Neighbors recalled that {s} laughed easily and slept very little.",
        "{s} played the flute and owned a large collection of maps.",
        "Few portraits exist, but {s} is said to have been tall.",
        "{s} disliked crowds and answered every letter by hand.",
        "When the savings were gone, {s} gave lessons in drawing.",
        "{s} spoke four languages and was known for a dry wit.",
        "Many friends believed that {s} was far too generous with money.",
        "{s} wore the same gray coat in every season of the year.",
    ),
    "novel": (
        "Reviewers found {s} gloomy, yet the final chapter was widely praised.",
        "{s} has been translated many times and adapted for the stage.",
        "A worn copy of {s} was once carried to the pole.",
        "{s} follows two sisters who inherit a failing inn.",
    ),
    "painting": (
        "{s} was damaged by smoke and has been cleaned only once.",
        "Scholars still argue about the small dog hidden in {s}.",
        "{s} is admired for its pale light and its patient detail.",
        "Copies of {s} were sold as prints at country fairs.",
    ),
    "company": (
        "At its height {s} gave work to half of the district.",
        "{s} survived two fires and a long strike of its workers.",
        "The goods sold by {s} were stamped with a small owl.",
        "{s} was known for fair wages and for very strict foremen.",
    ),
    "ship": (
        "Sailors believed that {s} was lucky, even in heavy weather.",
        "{s} carried grain, wine and sometimes a few paying passengers.",
        "A model of {s} stands in a glass case today.",
        "{s} lost a mast in a storm but was never sunk.",
    ),
    "city": (
        "{s} holds a market on the first day of every month.",
        "Most houses in {s} are built of a soft yellow stone.",
        "{s} is known for its steep stairs and its many cats.",
        "Every autumn the people of {s} race wooden carts downhill.",
        "{s} burned down twice and was rebuilt on the same plan.",
        "Travelers praise {s} for its clean inns and its plum cake.",
    ),
    "region": (
        "{s} exports wool, honey and a bitter kind of tea.",
        "The winters in {s} are mild, but the wind never rests.",
        "{s} has few roads, and most of them follow old canals.",
        "Shepherds in {s} still count their flocks in an older language.",
    ),
    "river": (
        "{s} is shallow in summer and rich in trout and eels.",
        "Old ferries still cross {s} wherever there is no bridge.",
        "{s} freezes in hard winters, and children skate on the ice.",
        "Legends tell of a silver bell that lies beneath {s}.",
    ),
    "mountain": (
        "{s} is hidden by cloud on most days of the year.",
        "Hunters say that {s} hums when the wind turns north.",
        "{s} has a small hut where climbers may spend the night.",
        "Wild goats are often seen on the lower slopes of {s}.",
    ),
}
