"""Readable names for the demo log: listeners, songs and genres. All are distinct and deterministic."""

from __future__ import annotations

from dynedge.utils.array_type import Array

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
    """Returns distinct names: first names in turn, combined with last names shifted by one in each round."""
    first, last = FIRST_NAMES.split(), LAST_NAMES.split()
    names = []
    for k in range(count):
        round_, a = divmod(k, len(first))
        names.append(_numbered(f"{first[a]} {last[(round_ + a) % len(last)]}", round_ // len(last)))
    return names


def titles(genre_of: Array) -> list[str]:
    """Returns a distinct title for each item, with a noun of its genre; no noun is in two genres."""
    adjectives, nouns = ADJECTIVES.split(), [words.split() for words in GENRES.values()]
    count = [0] * len(nouns)
    titles = []
    for genre in genre_of:
        round_, n = divmod(count[genre], len(nouns[genre]))
        count[genre] += 1
        adjective = adjectives[
            (11 * round_ + 5 * n + 3 * genre) % len(adjectives)
        ]  # the number of adjectives is prime
        titles.append(_numbered(f"{adjective} {nouns[genre][n]}", round_ // len(adjectives)))
    return titles


def _numbered(name: str, use: int) -> str:
    """Returns "Name 2" for the second use of a name, and so on."""
    return f"{name} {use + 1}" if use else name
