"""Made-up contracts: numbered sections of whole sentences, by topic, with parties, days, sums and places filled in."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

KINDS: Final = (
    ("Supply Agreement", "Supplier", "Customer", "goods"),
    ("Software Licence", "Licensor", "Licensee", "software"),
    ("Service Agreement", "Contractor", "Client", "services"),
    ("Equipment Lease", "Lessor", "Lessee", "equipment"),
    ("Distribution Agreement", "Principal", "Distributor", "products"),
    ("Research Agreement", "Institute", "Sponsor", "results"),
    ("Hosting Agreement", "Provider", "Subscriber", "platform"),
    ("Maintenance Agreement", "Technician", "Owner", "installation"),
    ("Publishing Agreement", "Publisher", "Author", "work"),
    ("Carriage Agreement", "Carrier", "Shipper", "cargo"),
)
"""Title, the two parties, and what it is about."""

ASKED: Final = ("warranty", "liability", "termination", "patents", "notices")

TOPICS: Final[Mapping[str, tuple[str, ...]]] = {
    "definitions": (
        "In this agreement, the {thing} means everything listed in schedule {n}, together with later replacements.",
        "A business day is any day other than a Saturday, a Sunday or a public holiday in {place}.",
        "Headings are for convenience only and do not affect how a clause is read.",
        "References to a statute include the statute as amended from time to time.",
        "Where a period is stated in days, the day on which the event falls is not counted.",
    ),
    "delivery": (
        "The {one} shall make the {thing} available in {place} within {n} days of each order.",
        "Delivery is complete when the {other} has signed for it, and not before.",
        "If a delivery date cannot be kept, the {one} shall say so at least {n} days ahead and propose another.",
        "The {other} shall inspect the {thing} within {n} days and report every visible fault in that time.",
        "Partial delivery is allowed only where an order says so.",
    ),
    "payment": (
        "The {other} shall pay each invoice within {n} days of its date, without deduction.",
        "Late sums bear interest at {rate} percent above the base rate of the central bank, counted daily.",
        "The {one} may raise its prices once a year, by no more than {rate} percent, on {n} days' notice.",
        "Taxes and duties are added at the rate that applies on the day of the invoice.",
        "A sum in dispute may be held back until the dispute is settled, but the rest falls due as agreed.",
    ),
    "confidentiality": (
        "Each party keeps secret what it learns of the other's business and uses it for this agreement only.",
        "This duty ends {n} months after the agreement does, whatever the reason for its end.",
        "It does not cover what was public already, or what a court or authority orders to be disclosed.",
        "Copies are to be returned or destroyed within {n} days of a written request.",
        "Staff and advisers may be told what they need, once they are bound in the same way.",
    ),
    "warranty": (
        "The {one} warrants that the {thing} will conform to schedule {n} for a period of {m} months from delivery.",
        "A defect reported within that period shall be remedied at the {one}'s expense by repair or replacement.",
        "The warranty lapses where the {other} has altered the {thing} or used it against the written instructions.",
        "Should two attempts at repair fail, the {other} may ask for a reduction of the price of up to {rate} percent.",
        "Ordinary wear, and parts that are consumed in use, are outside this warranty.",
        "No other warranty is given, whether express or implied, and none of fitness for a particular purpose.",
    ),
    "liability": (
        "Neither party is liable for loss of profit, loss of data or any indirect damage, however it was caused.",
        "The total liability of the {one} under this agreement shall not exceed {amount} euros in any year.",
        "That ceiling does not apply to injury, to intent, or to a breach of the clause on confidentiality.",
        "The {other} shall bring a claim within {n} months of learning of the damage, or lose it.",
        "Each party shall take reasonable steps to keep the damage small, and is liable for what it failed to avert.",
        "Events beyond a party's control, such as flood, strike or war, suspend its duties for as long as they last.",
    ),
    "termination": (
        "This agreement runs for {m} months and is renewed for the same time unless a party gives {n} days' notice.",
        "Either party may end it at once if the other is in material breach and does not remedy it within {n} days.",
        "The {one} may suspend performance while an undisputed invoice stays unpaid for more than {n} days.",
        "On termination the {other} shall return the {thing}, or confirm in writing that it has been destroyed.",
        "Sums that fell due before the end remain payable, and so do those for orders already accepted.",
        "Clauses that by their nature are meant to last, such as those on secrecy and liability, survive.",
    ),
    "patents": (
        "The {one} grants the {other} a licence under those of its patents that the {thing} would otherwise infringe.",
        "The licence is not exclusive, cannot be transferred, and is limited to {place}.",
        "A party that sues the other over a patent embodied in the {thing} loses every licence granted here.",
        "If a third party claims infringement, the {one} defends the claim, or changes the {thing} within {n} days.",
        "Inventions made jointly belong to both parties, each of which may use them without accounting to the other.",
        "No right under any other patent is granted, neither by implication nor by conduct.",
    ),
    "notices": (
        "Notices must be in writing and reach the other party at the address in schedule {n}, or one notified later.",
        "A letter is taken to arrive {m} business days after posting, a message on the day after it was sent.",
        "Notice of breach or termination is valid by registered letter only, signed by an officer of the party.",
        "A change of address takes effect {n} days after the other party was told of it.",
        "Notices in a language other than that of this agreement need a certified translation.",
        "Each party shall name one person in {place} who may receive notices on its behalf.",
    ),
    "assignment": (
        "No party may assign this agreement without the other's consent, which is not to be withheld unreasonably.",
        "The {one} may employ others to perform, but answers for them as for itself.",
        "A sale of all or most of a party's business counts as an assignment.",
        "Consent is taken as given if no answer has come within {n} days of a written request.",
    ),
    "law": (
        "This agreement is governed by the law in force in {place}, without its rules on conflict of laws.",
        "Disputes go first to the managers of both parties, who have {n} days to settle them.",
        "After that the courts of {place} alone are competent.",
        "The parties may agree on arbitration before a single arbitrator at any time.",
    ),
    "general": (
        "This agreement, with its {n} schedules, replaces all that was agreed or said before on the same matter.",
        "Changes need the written form, and so does a waiver of that form.",
        "If a clause is void, the rest stands, and a valid clause closest in effect takes its place.",
        "A right that is not exercised is not thereby given up.",
    ),
}
"""Sentences of a section, by topic; `ASKED` are those that extraction asks for."""

_EACH = 3
_PLACES: Final = ("Ghent", "Tallinn", "Porto", "Graz", "Aarhus", "Lviv", "Zadar", "Bergen")
_NAMES: Final = ("Norvik", "Harrow", "Lumenta", "Quillon", "Aldine", "Tessera", "Osprey", "Fennimore")


@dataclass(frozen=True, slots=True)
class Section:
    """`number`: as printed. `topic`: of `TOPICS`."""

    number: str
    topic: str
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.sentences)


@dataclass(frozen=True, slots=True)
class Contract:
    """`parties`: by the names that its clauses use."""

    title: str
    parties: tuple[str, str]
    sections: tuple[Section, ...]

    def render(self, sections: Sequence[Section]) -> str:
        """Its title, and the given ones of its sections, each with its number and topic."""
        head = f"# {self.title}\n\n" if self.title else ""
        return head + "\n\n".join(f"{s.number} {s.topic.capitalize()}\n{s.text}" for s in sections)


def contracts(rng: random.Random) -> list[Contract]:
    """`_EACH` of each kind, with different partners, in a seeded order; topics come in a seeded order too, and some
    are left out."""
    made = [_contract(rng, *kind, partner) for kind in KINDS for partner in rng.sample(_NAMES, _EACH)]
    rng.shuffle(made)
    return made


def _contract(rng: random.Random, kind: str, one: str, other: str, thing: str, partner: str) -> Contract:
    topics = [topic for topic in TOPICS if rng.random() < 0.85]
    first, rest = topics[:1], topics[1:]
    rng.shuffle(rest)
    sections = []
    for number, topic in enumerate([*first, *rest], 1):
        bank = TOPICS[topic]
        kept = sorted(rng.sample(range(len(bank)), rng.randint(len(bank) - 2, len(bank))))
        sentences = tuple(fill(rng, bank[i], one, other, thing) for i in kept)
        sections.append(Section(f"{number}.", topic, sentences))
    return Contract(f"{kind} with {partner}", (one, other), tuple(sections))


def fill(rng: random.Random, sentence: str, one: str, other: str, thing: str) -> str:
    """The sentence with its slots filled."""
    values = {
        **{"one": one, "other": other, "thing": thing, "place": rng.choice(_PLACES)},
        **{"n": str(rng.randint(3, 90)), "m": str(rng.randint(2, 48)), "rate": str(rng.randint(2, 25))},
        "amount": f"{rng.randint(5, 900)},000",
    }
    return sentence.format(**values)


def amended(rng: random.Random, contract: Contract, share: float) -> Contract:
    """The contract with other numbers in one sentence each of a share of its sections, at least in one that has any."""
    with_numbers = [i for i, s in enumerate(contract.sections) if any(map(_has_number, s.sentences))]
    chosen = {i for i in with_numbers if rng.random() < share} or {rng.choice(with_numbers)}
    sections = []
    for i, section in enumerate(contract.sections):
        if i in chosen:
            at = rng.choice([k for k, sentence in enumerate(section.sentences) if _has_number(sentence)])
            changed = re.sub(
                r"\d+", lambda found: str(int(found[0]) + rng.randint(1, 9)), section.sentences[at], count=1
            )
            section = Section(
                section.number, section.topic, (*section.sentences[:at], changed, *section.sentences[at + 1 :])
            )
        sections.append(section)
    return Contract(contract.title, contract.parties, tuple(sections))


def _has_number(sentence: str) -> bool:
    return re.search(r"\d", sentence) is not None
