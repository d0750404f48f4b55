"""Sentence patterns of a user manual and the words that they need, for texts in made-up languages."""

from __future__ import annotations

from typing import Final

PATTERNS: Final = (
    "{V} {d} {a} {n} {p} {d} {n}.",
    "{V} {d} {n} {p} `{code}`, {c} {v} {d} {a} {n}.",
    "{D} {a} {n} {m} {v} {d} {n} {r}.",
    "{R} {v} {a} {n} {p} {product}.",
    "{P} {d} {n}, {v} {hole} {r}.",
    "{D} {n} {m} not {v} {a} {n} {p} {url}.",
    "{product} {m} {r} {v} {d} {a} {n}.",
    "{C} {d} {n} {m} {v} `{code}`, {v} {d} {n}.",
    "{P} {date} {d} {n} {m} {v} {n}.",
    "{V} {a} {n}, {a} {n}, {c} {d} {n} {p} {key}.",
    "{R} {d} {n} {p} {d} {a} {n} {m} {v} {hole}.",
    "{key} {m} {v} {d} {n} {p} {a} {n}.",
    "{V} {n} {r} {c} {n} {m} {v} {d} {n} {p} {product}.",
    "{D} {n} {p} {product} {m} {v} `{code}` {r}.",
    "{P} {url}, {d} {a} {n} {m} {v}.",
    "{R} {p} {date}, {v} {n} {c} {v} {d} {n}.",
)
"""Slots: noun, verb, adjective, determiner, preposition, conjunction, modal, adverb (r); capitals begin a sentence."""

DETERMINERS: Final = ("this", "every", "any", "some", "another", "that", "your", "each", "no", "its", "one", "our")
PREPOSITIONS: Final = (
    *("with", "near", "below", "after", "before", "inside", "behind", "without", "for", "above", "during", "beside"),
)
CONJUNCTIONS: Final = ("and", "or", "unless", "because", "while", "until", "although", "if")
MODALS: Final = ("can", "must", "may", "should", "will", "cannot", "might", "shall")
ADVERBS: Final = (
    *("quickly", "often", "again", "later", "now", "carefully", "sometimes", "together", "first", "twice", "soon"),
    *("quietly", "rarely", "once", "here", "slowly"),
)
NOUNS: Final = (
    *("file", "window", "page", "button", "folder", "network", "account", "password", "printer", "screen", "message"),
    *("table", "image", "backup", "device", "menu", "letter", "report", "calendar", "address", "channel", "filter"),
    *("project", "cable", "battery", "update", "language", "keyboard", "archive", "signature", "template", "server"),
    *("camera", "carpet", "engine", "ladder", "mirror", "pencil", "river", "station", "theatre", "valley", "winter"),
    *("author", "basket", "candle", "doctor", "envelope", "feather", "harbour", "island", "kitchen", "lantern"),
    *("column", "paragraph", "picture", "speaker", "garden", "market", "ticket", "bridge", "journey", "museum"),
)
VERBS: Final = (
    *("save", "close", "print", "delete", "copy", "send", "move", "rename", "protect", "repair", "search", "share"),
    *("compare", "restore", "measure", "replace", "import", "export", "lock", "sort", "carry", "choose", "follow"),
    *("gather", "invite", "paint", "read", "remove", "visit", "watch", "write", "open"),
)
ADJECTIVES: Final = (
    *("new", "large", "hidden", "empty", "old", "secure", "local", "shared", "damaged", "official", "short", "bright"),
    *(
        "temporary",
        "complete",
        "foreign",
        "quiet",
        "public",
        "early",
        "narrow",
        "visible",
        "ancient",
        "broken",
        "clean",
    ),
    *("distant", "famous", "gentle", "heavy", "modern", "precious", "simple", "wooden"),
)
PRODUCTS: Final = (
    *("Norvik Desk", "Tallow", "Quillon Studio", "Papyrix", "Lumenta", "Harrow One", "Orbis Mail", "Cindervale"),
    *("Vexil", "Marlow Notes", "Fennimore", "Aldine Press", "Pellucid", "Tessera", "Brio Sync", "Kestrel View"),
    *("Osprey Cloud", "Meridian", "Sablewood", "Zephyrine"),
)
CODES: Final = (
    *("config --reset", "E1042", "user.name", "sync_all()", "PATH", "a/b/c.txt", "--quiet", "retry=3", "%s", "0x7f"),
    *("main.py", "SELECT 1", "tmp/", "null", "utf-8", "v2.4.1"),
)
HOLES: Final = ("{count}", "{user_name}", "%d", "{file}", "%s", "{date}", "{0}", "{total}")
KEYS: Final = ("Ctrl+S", "F5", "Alt+Enter", "Esc", "Ctrl+Shift+P", "Tab")
URLS: Final = (
    "https://docs.example.org/start",
    "https://example.com/help?id=42",
    "https://example.net/a/b",
    "https://status.example.org",
)
DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October"),
    *("November", "December"),
)

LANGUAGES: Final = {
    "toy": (
        ("zu", "vo", "mi", "ka", "re", "tol", "ne", "pu", "shi", "dra", "lem", "ost", "qua", "bri", "fen", "gul"),
        None,
        None,
    ),
    "finnish": (
        ("kä", "ty", "lö", "ris", "vuo", "mää", "hen", "si", "kki", "tau", "ly", "jo", "nee", "pö", "rä", "hti"),
        ("maanantai", "tiistai", "keskiviikko", "torstai", "perjantai", "lauantai", "sunnuntai"),
        (
            *("tammikuu", "helmikuu", "maaliskuu", "huhtikuu", "toukokuu", "kesäkuu", "heinäkuu", "elokuu"),
            *("syyskuu", "lokakuu", "marraskuu", "joulukuu"),
        ),
    ),
    "greek": (
        tuple("αβγδεζηθικλμνξοπρστυφχψω"),
        ("Δευτέρα", "Τρίτη", "Τετάρτη", "Πέμπτη", "Παρασκευή", "Σάββατο", "Κυριακή"),
        (
            *("Ιανουαρίου", "Φεβρουαρίου", "Μαρτίου", "Απριλίου", "Μαΐου", "Ιουνίου", "Ιουλίου", "Αυγούστου"),
            *("Σεπτεμβρίου", "Οκτωβρίου", "Νοεμβρίου", "Δεκεμβρίου"),
        ),
    ),
    "korean": (
        ("가", "나", "도", "리", "문", "별", "산", "어", "장", "차", "코", "탑", "평", "해", "길", "슬"),
        ("월요일", "화요일", "수요일", "목요일", "금요일", "토요일", "일요일"),
        ("1월", "2월", "3월", "4월", "5월", "6월", "7월", "8월", "9월", "10월", "11월", "12월"),
    ),
}
"""Of a language: syllables of its made-up words, and its real names of days and months (None: made up too). Greek has
letters for syllables: tokenizers cut it so finely that longer words would be runs worth copying."""
