"""Names for the demo: listeners, songs, genres; all distinct, the same every time."""

from __future__ import annotations

from dynedge.utils.arrays import Array

FIRST_NAMES = (
    "Ada Amir Ana Ben Bo Carla Chen Dara Diego Elif Emma Farid Grace Hana Hugo Ines Ivan Jonas Jun Kofi Lena Leo Lin "
    "Maja Marco Mei Nadia Nils Noor Olga Omar Petra Ravi Rosa Sam Sofia Tariq Uma Yara Zoe"
)
LAST_NAMES = (
    "Abara Adler Bauer Costa Demir Dubois Eriksen Fischer Garcia Haddad Ito Jansen Kaya Khan Kim Kovac Larsen Lopez "
    "Meyer Moreau Nakano Novak Okafor Patel Petrov Quist Rahman Rossi Sato Silva Tanaka Tran Usman Varga Weber"
)
ADJECTIVES = (
    "Amber Blue Broken Crimson Distant Early Electric Empty Endless Fading Final Gentle Golden Hidden Hollow Iron "
    "Little Lonely Lost Lucky Midnight Northern Old Paper Quiet Restless Rising Sacred Silver Slow Southern Stolen "
    "Summer Sweet Velvet Wild Winter"
)
GENRES = {
    "ambient": "Tide Mist Orbit Glacier Stillness Lagoon Aurora Horizon",
    "blues": "Delta Whiskey Porch Freight Sorrow Crossroads Levee Moan",
    "classical": "Nocturne Sonata Prelude Elegy Serenade Fugue Rondo Aria",
    "country": "Prairie Truck Saddle Gravel Creek Barn Rodeo County",
    "disco": "Mirror Fever Boogie Glitter Groove Strobe Roller Dancefloor",
    "electronic": "Circuit Voltage Pixel Signal Machine Neon Pulse Static",
    "folk": "Meadow Lantern Orchard Shepherd Harvest Willow Ferry Hearth",
    "hip-hop": "Block Cipher Hustle Crown Corner Verse Sneaker Borough",
    "jazz": "Swing Cafe Saxophone Avenue Trio Smoke Brass Bebop",
    "metal": "Hammer Throne Ash Inferno Raven Chain Plague Anvil",
    "pop": "Heart Kiss Crush Weekend Sugar Balloon Radio Selfie",
    "rock": "Highway Engine Rebel Thunder Stone Garage Riot Amplifier",
}


def people(count: int) -> list[str]:
    """Distinct names: the first names go round, the last names a step further each time."""
    first, last = FIRST_NAMES.split(), LAST_NAMES.split()
    names = []
    for k in range(count):
        turn, a = divmod(k, len(first))
        names.append(_numbered(f"{first[a]} {last[(turn + a) % len(last)]}", turn // len(last)))
    return names


def titles(genre_of: Array) -> list[str]:
    """A distinct title for each item, made of its genre's nouns: no noun is in two genres."""
    adjectives, nouns = ADJECTIVES.split(), [words.split() for words in GENRES.values()]
    made = [0] * len(nouns)
    titles = []
    for genre in genre_of:
        turn, n = divmod(made[genre], len(nouns[genre]))
        made[genre] += 1
        adjective = adjectives[(11 * turn + 5 * n + 3 * genre) % len(adjectives)]  # their number is prime
        titles.append(_numbered(f"{adjective} {nouns[genre][n]}", turn // len(adjectives)))
    return titles


def _numbered(name: str, turn: int) -> str:
    """The second of a name is "Name 2"."""
    return f"{name} {turn + 1}" if turn else name
